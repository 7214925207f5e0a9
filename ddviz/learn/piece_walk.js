// Task `walk`: greedy verification by hand, child by child; followArgmax (twin_accept.js) knows the way.

function walkPiece({ lesson, answer, go, step: stepOf, reveal }) {
  const box = make("div", "ddviz-learn-piece ddviz-learn-walk");
  const says = append(box, make("p")).lastChild;
  const choices = append(box, make("div", "ddviz-learn-choices")).lastChild;
  let [view, path, done] = [null, null, 0];

  stepOf(lesson.step).then((found) => {
    view = found;
    const tree = {
      tokens: view.nodes.map(({ id }) => id),
      nextToken: view.nodes.map((node) => node.next_token),
      nextSibling: view.nodes.map((node) => node.next_sibling),
    };
    path = followArgmax(tree, view.nodes.map(({ argmax }) => argmax.id), Infinity).path;
    draw();
  });

  function draw() {
    const node = view.nodes[path[done]];
    const [own, wanted] = [tokenText(node.label), tokenText(node.argmax.label)];
    says.replaceChildren(`After node ${node.i} `, own, " the target's argmax is ", wanted, ".");
    const children = node.children.map((i) => choice(`node ${i}`, view.nodes[i].label, i));
    choices.replaceChildren(...children, choice("No child: it is the bonus", null, null));
  }

  function choice(name, label, node) {
    const one = button("ddviz-learn-offer", "", label === null ? name : `${name}, ${label}`, () => take(node));
    return append(one, make("span", "", name), label === null ? null : tokenText(label));
  }

  function take(node) {
    const at = view.nodes[path[done]];
    const next = path[done + 1] ?? null;
    if (node !== next) {
      const want = shorten(at.argmax.label, 24);
      if (node === null) return answer.wrong(`A child of node ${at.i} does hold ${want}.`);
      return answer.wrong(`Node ${node} holds ${shorten(view.nodes[node].label, 24)}, the target wants ${want}.`);
    }
    if (node === null) {
      choices.replaceChildren();
      says.textContent = `Accepted: ${path.length - 1}. Emitted: ${view.emitted.map(({ label }) => label).join(" ")}.`;
      answer.right(`${shorten(at.argmax.label, 24)} is the bonus, and the next root.`);
      return reveal();
    }
    done += 1;
    answer.note(`✓ Node ${node} is accepted.`);
    go({ node });
    draw();
    return choices.querySelector("button")?.focus();
  }

  return { element: box };
}
