"""Start ddviz: the embedded engine with the demo models, and the app on http://127.0.0.1:7860."""

from ddviz.app.main import launch
from ddviz.engines.base import EngineOptions
from ddviz.engines.process import EngineProcess

if __name__ == "__main__":
    launch(EngineProcess(EngineOptions(dtype="auto")))
