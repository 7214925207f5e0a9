"""Somebody with a keyboard alone: where Tab leads, what has the focus, and whether that is seen."""

from collections.abc import Callable
from typing import Any, NamedTuple

MARGIN = 12  # px around a part, where its outline may be

# What has the focus, also inside shadow roots.
ACTIVE = """(() => {
  let at = document.activeElement;
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
  return at;
})()"""
FOCUSED = f"""((at) => {{
  const label = at?.labels?.[0]?.textContent.trim();
  return at?.getAttribute("aria-label") || at?.textContent || label || "";
}})({ACTIVE})"""
# Every part that Tab should lead to: of radio buttons that share a name the one that is chosen.
_TABBABLE = """(() => {
  const found = [];
  const chosen = (root, { name }) =>
    name && [...root.querySelectorAll(":checked")].some((other) => other.name === name);
  const look = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (element.shadowRoot) look(element.shadowRoot);
      if (element.tabIndex < 0 || element.disabled || !element.getClientRects().length) continue;
      if (getComputedStyle(element).visibility === "hidden" || element.closest("[inert]")) continue;
      const isStop = element.matches("a[href], button, input, select, textarea, summary, [tabindex]");
      const isOther = element.type === "radio" && !element.checked && chosen(root, element);
      if (isStop && !isOther) found.push(element);
    }
  };
  look(document);
  const sheet = found.filter((element) => element.closest("dialog[open]")); // modal: it holds Tab
  return sheet.length ? sheet : found;
})()"""
NAME = """(e) => {
  const name = e.getAttribute("aria-label") || e.title || e.labels?.[0]?.textContent || e.textContent;
  return `${e.tagName.toLowerCase()} ${String(name).trim().slice(0, 60)}`;
}"""


class Stop(NamedTuple):
    """A part of the page that Tab leads to."""

    name: str
    is_seen: bool  # the page looks otherwise around it than without the focus


def tab_to(page: Any, name: str, back: bool = False, most: int = 120) -> None:
    """Press Tab until what has the focus is named so. Fails where Tab does not lead there."""
    seen = []
    for _ in range(most):
        focused = page.evaluate(FOCUSED)
        if focused.startswith(name):
            return
        seen.append(focused[:30])
        page.keyboard.press("Shift+Tab" if back else "Tab")
    raise AssertionError(f"Tab does not lead to {name!r}, but to {seen}")


def tabbable(page: Any) -> list[str]:
    """Names of all that Tab should lead to, sorted."""
    return sorted(page.evaluate(f"{_TABBABLE}.map({NAME})"))


def walk(
    page: Any, back: bool = False, look: Callable[[str], bool] = lambda name: True, most: int = 250
) -> list[Stop]:
    """Every stop from the beginning of the page, or from its end, once round.

    look  whether to compare pictures of a stop, by its name; one that is not looked at counts as seen
    Raises AssertionError where Tab does not come round: a trap.
    """
    page.evaluate(f"{ACTIVE}?.blur(), getSelection().removeAllRanges()")
    page.evaluate(
        "document.body.tabIndex = -1, document.body.focus(), document.body.removeAttribute('tabindex')"
    )
    stops: list[Stop] = []
    taken: tuple[Any, bytes] | None = None  # where the stop before is, and how it looked with the focus
    for _ in range(most):
        page.keyboard.press("Shift+Tab" if back else "Tab")
        if taken:
            stops[-1] = stops[-1]._replace(is_seen=page.screenshot(clip=taken[0]) != taken[1])
        page.evaluate(f"globalThis.stop = {ACTIVE}")
        is_outside = page.evaluate("stop === document.body || stop === null")
        if is_outside and not stops:
            continue
        if is_outside or page.evaluate("stop === globalThis.firstStop"):
            page.evaluate("globalThis.firstStop = null")
            return stops
        if not stops:
            page.evaluate("globalThis.firstStop = stop")
        name = page.evaluate(f"({NAME})(stop)")
        clip = _place(page) if look(name) else None
        taken = (clip, page.screenshot(clip=clip)) if clip else None
        stops.append(Stop(name, not look(name)))
    raise AssertionError(f"Tab does not come round the page: {[stop.name for stop in stops[-8:]]}")


def _place(page: Any) -> dict[str, float] | None:
    """What is to be seen of the stop and a little around it; of a radio button its label."""
    left, top, right, bottom = page.evaluate(
        """(({ left, top, right, bottom }) => [left, top, right, bottom])(
            (stop.labels?.length && stop.type === "radio" ? stop.labels[0] : stop).getBoundingClientRect())"""
    )
    size = page.viewport_size
    left, top = max(0, left - MARGIN), max(0, top - MARGIN)
    width, height = min(size["width"], right + MARGIN) - left, min(size["height"], bottom + MARGIN) - top
    return {"x": left, "y": top, "width": width, "height": height} if width > 0 and height > 0 else None
