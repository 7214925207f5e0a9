// Views stand in the place of tree, stage and numbers while their button is down: the whole batch, the charts. One at
// a time; the button's label names it in a link (link.js). The text stays beside them, so that a step that was chosen
// in a view is seen there.

function newView(box, viewer, { name, label, says, onShow }) {
  const pane = append(box, make("section", `ddviz-pane ddviz-view-pane ddviz-${name}-pane`)).lastChild;
  const [title, summary] = [make("h3", "ddviz-title", label), make("span", "ddviz-muted")];
  const body = newScroller(`ddviz-view-body ddviz-${name}-body`, label);
  append(pane, append(make("header", "ddviz-pane-head"), title, summary), body);
  pane.hidden = true;
  const toggle = append(viewer.views, toggleButton("ddviz-small", name, says, show)).lastChild;

  function show(on) {
    if (on) for (const other of viewer.views.querySelectorAll('[aria-pressed="true"]')) if (other !== toggle) other.click();
    keepFocus(viewer.root, () => {
      pane.hidden = !on;
      box.classList.toggle("ddviz-viewing", on);
    });
    if (on) onShow();
  }

  return { pane, body, title, summary, isOn: () => !pane.hidden };
}

// A stage is chosen: it and the tree are seen again.
function closeViews({ views }) {
  views.querySelector('[aria-pressed="true"]')?.click();
}

// Presses a toggle button by its name, for keys; false where there is none.
function toggleCommand({ root }) {
  return function toggle(name) {
    const found = root.querySelector(`[data-toggle="${name}"]`);
    return found ? found.click() : false;
  };
}
