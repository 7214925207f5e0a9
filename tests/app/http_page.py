"""A page without a browser: what an open page asks of the app, over HTTP, with the cookie it was given."""

import json
from typing import Any

import httpx

Answer = dict[str, Any]


class HttpPage:
    """One open page. `seen` is called with the bytes of every answer."""

    def __init__(self, url: str, seen: Any = lambda raw: None) -> None:
        self.client = httpx.Client(base_url=url, timeout=60, trust_env=False)
        self.seen = seen
        self.client.get("/").raise_for_status()
        config = self.client.get("/config").raise_for_status().json()
        self._parts = {part["id"]: part for part in config["components"]}
        self._events = config["dependencies"]
        self._session = config.get("session_hash") or f"page{id(self):x}"

    def close(self) -> None:
        self.client.close()

    # --- panels

    def panel(self, label: str) -> int:
        """The id of the panel whose section has this label."""
        sections = (
            (part["id"], str(part["props"].get("html_template", ""))) for part in self._parts.values()
        )
        return next(number for number, html in sections if f'aria-label="{label}"' in html)

    def ask_raw(self, panel: int, function: str, **request: Any) -> bytes:
        """What a server function of a panel answers."""
        body = {"component_id": panel, "fn_name": function, "session_hash": self._session, "data": request}
        answer = self.client.post("/gradio_api/component_server", json=body).raise_for_status().content
        self.seen(answer)
        return answer

    def ask(self, panel: int, function: str, **request: Any) -> Answer:
        answer: Answer = json.loads(self.ask_raw(panel, function, **request))
        return answer

    def status(self) -> Answer:
        return self.ask(self.panel("Engine"), "status")

    def control(self, action: str) -> Answer:
        return self.ask(self.panel("Engine"), "control", action=action)

    # --- events

    def fire(self, part: int, event: str, values: list[Any]) -> list[Any]:
        """What Python answers to an event: a value for each output."""
        found = next(each for each in self._events if [part, event] in each["targets"])
        body = {"fn_index": found["id"], "data": values, "event_data": None, "trigger_id": part}
        answer = self.client.post("/gradio_api/run/predict", json={**body, "session_hash": self._session})
        self.seen(answer.raise_for_status().content)
        data: list[Any] = answer.json()["data"]
        return data

    def generate(self, **settings: Any) -> Answer:
        """Press Generate; `settings` by label, all else as the page opens. The answer to the control bar."""
        bar = self.panel("Engine")
        event = next(each for each in self._events if [bar, "generate"] in each["targets"])
        fields = [self._parts[number]["props"] for number in event["inputs"]]
        assert settings.keys() <= {field["label"] for field in fields}
        values = [settings.get(field["label"], field["value"]) for field in fields]
        answer: Answer = self.fire(bar, "generate", values)[1]
        return answer

    def samples(self) -> dict[str, str]:
        """Title -> id of the trace."""
        return dict(self._field("Sample")["props"]["choices"])

    def pick(self, trace: str) -> Answer:
        """Choose a sample; what the viewer is told."""
        answer: Answer = self.fire(self._field("Sample")["id"], "input", [trace])[0]
        return answer

    def _field(self, label: str) -> Answer:
        found: Answer = next(part for part in self._parts.values() if part["props"].get("label") == label)
        return found
