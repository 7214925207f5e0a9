"""The Live tab: a prompt and settings at the left, the run as it happens at the right.

In:  what the form holds, as the browser sends it.
Out: GenerateParams for the session; a refusal as one sentence. What was typed stays typed.
"""

import functools
import math
import re
from typing import Any, NamedTuple, get_args

import gradio as gr
import msgspec

from ddviz.app.panels import QUIET, control_bar, request_list, viewer_panel
from ddviz.app.session import Session
from ddviz.engines.base import MAX_BUDGET, SEED_NOTE, GenerateParams, Mode, ModelInfo
from ddviz.errors import DdvizError

DEFAULTS = GenerateParams(prompt="Write a Python implementation of quicksort with comments.")
MODES: dict[Mode, str] = {"ddtree": "DDTree", "dflash": "DFlash", "ar": "Autoregressive"}

# name in the form and in GenerateParams, label, hint, step of the arrow keys
NUMBERS = [
    ("budget", "Budget", "1 to 1024 nodes", 1),
    ("topk_cap", "Top-k cap", "0 = no cap", 1),
    ("temperature", "Temperature", "0 = greedy", 0.1),
    ("top_k", "Top-k", "0 = off", 1),
    ("top_p", "Top-p", "1 = off", 0.05),
    ("max_new_tokens", "Max tokens", "of the output", 1),
]
FRACTIONS = {"temperature", "top_p"}
TREE_ONLY = ("budget", "topk_cap")


class Form(NamedTuple):
    """The widgets, or their values, in one order. `params` reads it, `values` fills it."""

    prompt: Any
    chat: Any
    mode: Any
    budget: Any
    topk_cap: Any
    temperature: Any
    top_k: Any
    top_p: Any
    max_new_tokens: Any
    seed: Any


def live_tab(session: Session) -> Any:
    """Build the tab. Returns the events' end: a function for the page's load, and its outputs."""
    with gr.Row(elem_classes="ddviz-live"):
        with gr.Column(elem_classes="ddviz-side", min_width=280):
            form, bar, requests = _side(session)
        with gr.Column(elem_classes="ddviz-main", min_width=320):
            viewer = viewer_panel(session, "Live run")
    _connect(session, form, bar, viewer)
    if requests is not None:

        def show(event: gr.EventData) -> Any:  # Gradio looks at the annotation, so this is no partial
            return show_request(session, (event._data or {}).get("trace"))

        requests.open(show, None, viewer, **QUIET)

    def load() -> list[Any]:
        viewer_value = gr.skip() if session.run is None else session.viewer_value()
        filled = {name: gr.update(value=value) for name, value in values(session)._asdict().items()}
        for name, update in offers(session, filled["mode"]["value"]).items():
            filled[name] = {**filled[name], **update}
        return [viewer_value, *Form(**filled)]

    return load, [viewer, *form]


def show_request(session: Session, trace_id: Any) -> Any:
    """The viewer's value for a request that was chosen from the list."""
    if not isinstance(trace_id, str) or trace_id not in session.registry:
        return gr.skip()
    return session.value_of(trace_id, session.next_nonce())


def offers(session: Session, mode: Any) -> dict[str, Any]:
    """What the engine offers, as updates of the widgets that depend on it; nothing while it is not known."""
    model = session.status().model
    if model is None:
        return {}
    labels = {**MODES, "server": model.algorithm}
    choices = [(label, name) for name, label in labels.items() if name in model.modes]
    kept = mode if mode in model.modes else choices[0][1]
    budget, cap = hints(model)
    has_tree = kept == "ddtree"
    return {
        "mode": gr.update(choices=choices, value=kept),
        "budget": gr.update(info=budget, interactive=has_tree),
        "topk_cap": gr.update(info=cap, interactive=has_tree),
    }


def hints(model: ModelInfo) -> tuple[str, str]:
    """What is said beside Budget and Top-k cap."""
    budget = f"1 to {model.max_budget} nodes"
    if model.may_grow and model.max_budget < MAX_BUDGET:
        budget += ", more restarts it"
    cap = "0 = no cap"
    if model.max_topk_cap is not None and not model.may_grow:
        cap = f"1 to {model.max_topk_cap}"
    return budget, cap


def params(form: Form) -> GenerateParams:
    """What the form asks for. Raises DdvizError with one sentence on the first field that makes no sense."""
    fields = form._asdict()
    for name, label, _, _ in NUMBERS:
        fields[name] = _number(fields[name], label, whole=name not in FRACTIONS)
    fields["seed"] = _seed(_text(form.seed, "Seed").strip())
    if form.mode not in get_args(Mode):
        raise DdvizError("the mode must be one of ddtree, dflash and ar")
    if not isinstance(form.chat, bool):
        raise DdvizError("Chat template must be on or off")
    return GenerateParams(**{**fields, "prompt": _text(form.prompt, "Prompt")}).checked()


def values(session: Session) -> Form:
    """What the form should hold: the current run's settings, so that a reload loses nothing."""
    shown = session.run.params if session.run else _defaults(session)
    fields = {name: getattr(shown, name) for name in Form._fields}
    return Form(**fields | {"seed": "" if shown.seed is None else str(shown.seed)})


def _defaults(session: Session) -> GenerateParams:
    """DEFAULTS, with the tree that was measured to be the fastest here, or that the engine has room for."""
    model = session.status().model
    if model is None:
        return DEFAULTS
    budget = min(model.budget or DEFAULTS.budget, model.max_budget)
    cap = DEFAULTS.topk_cap if model.topk_cap is None else model.topk_cap
    if model.max_topk_cap is not None:
        cap = min(cap, model.max_topk_cap)
    mode = DEFAULTS.mode if DEFAULTS.mode in model.modes else model.modes[0]
    return msgspec.structs.replace(DEFAULTS, budget=budget, topk_cap=cap, mode=mode)


def _side(session: Session) -> tuple[Form, gr.HTML, gr.HTML | None]:
    start = values(session)
    prompt = gr.Textbox(start.prompt, label="Prompt", lines=4, max_lines=10, elem_classes="ddviz-prompt")
    bar = control_bar(session)
    requests = request_list(session) if session.registry.requests_folder else None
    with gr.Group(elem_classes="ddviz-settings"):
        choices = [(label, name) for name, label in MODES.items()]
        mode = gr.Radio(choices, value=start.mode, label="Mode", elem_classes="ddviz-mode")
        numbers = {
            name: gr.Number(getattr(start, name), label=label, info=hint, step=step)
            for name, label, hint, step in NUMBERS
        }
        # a Textbox: an empty gr.Number begins as 0, and JavaScript's numbers end at 2^53
        seed = gr.Textbox(
            start.seed,
            label="Seed",
            info=SEED_NOTE,
            placeholder="fresh",
            max_lines=1,
            elem_classes="ddviz-seed",
        )
        chat = gr.Checkbox(
            start.chat, label="Chat template", info="wraps the prompt as the target expects it"
        )
    return Form(prompt=prompt, chat=chat, mode=mode, seed=seed, **numbers), bar, requests


def _connect(session: Session, form: Form, bar: gr.HTML, viewer: gr.HTML) -> None:
    def begin(*fields: Any, one_step: bool = False) -> tuple[Any, Any]:
        try:
            session.generate(params(Form(*fields)), one_step=one_step)
        except DdvizError as error:
            return gr.skip(), {"error": str(error), "nonce": session.next_nonce()}
        return session.viewer_value(), {"error": None, "nonce": session.next_nonce()}

    bar.generate(begin, [*form], [viewer, bar], **QUIET)
    bar.generate_step(functools.partial(begin, one_step=True), [*form], [viewer, bar], **QUIET)
    form.prompt.submit(begin, [*form], [viewer, bar], **QUIET)
    bar.run(session.viewer_value, None, viewer, **QUIET)
    tree_fields = [getattr(form, name) for name in TREE_ONLY]

    def offer(mode: Any) -> list[Any]:
        updates = offers(session, mode)
        return [updates.get(name, gr.skip()) for name in ("mode", *TREE_ONLY)]

    bar.model(offer, form.mode, [form.mode, *tree_fields], **QUIET)
    form.mode.change(
        lambda mode: [gr.update(interactive=mode == "ddtree")] * len(tree_fields),
        form.mode,
        tree_fields,
        **QUIET,
    )


def _seed(text: str) -> int | None:
    if not text:
        return None
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise DdvizError(f"Seed is {text:.40}, must be a whole number, or empty for a fresh one")
    return int(text)


def _text(value: Any, label: str) -> str:
    if not isinstance(value, str | None):
        raise DdvizError(f"{label} must be text")
    return value or ""


def _number(value: Any, label: str, whole: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DdvizError(f"{label} is empty; type a number")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise DdvizError(f"{label} is too large")
    if whole and not (math.isfinite(value) and value == int(value)):
        raise DdvizError(f"{label} is {value:g}, must be a whole number")
    return int(value) if whole else float(value)
