// The page of the course: which lesson is shown, which were answered, the glossary.
//
//   learn(element, { lessons: [{ name, title }], glossary, load(name), source(key), first, onShow(name) })
//     load    -> Promise of a lesson as lesson_json (page.py) has it
//     source  of a trace by the lesson's key, as `mount` of the viewer takes it
//   -> { show(name), destroy }

function learn(element, { lessons, glossary, load, source, first, onShow }) {
  const scope = newScope();
  const root = newRoot(element, scope);
  root.classList.add("ddviz-learn");
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(LEARN_STYLESHEET);
  const shadow = root.getRootNode();
  shadow.adoptedStyleSheets = [...shadow.adoptedStyleSheets, sheet];
  const progress = newProgress();
  const terms = newGlossary(root, scope, glossary);
  const head = newHead(root, { lessons, progress, show, openTerms: terms.open });
  const body = append(root, make("main", "ddviz-learn-body")).lastChild;
  let shown = null; // { name, scope }
  watchTheme(scope, root, () => {});

  async function show(name, byReader = true) {
    shown?.scope.close();
    const own = { name, scope: newScope() };
    shown = own;
    head.mark(name);
    let lesson;
    try {
      lesson = await load(name);
    } catch (error) {
      const says = `The lesson can't be read (${messageOf(error)}).`;
      if (shown === own) body.replaceChildren(make("p", "ddviz-learn-problem", says));
      return;
    }
    if (shown !== own) return; // another was chosen meanwhile
    const after = lessons[lessons.findIndex((one) => one.name === name) + 1];
    const { heading } = showLesson(body, lesson, {
      scope: own.scope,
      source,
      isDone: progress.has(name),
      onTerm: terms.goTo,
      onRight() {
        progress.add(name);
        head.mark(name);
      },
      onNext: after && (() => show(after.name)),
    });
    if (byReader) heading.focus({ preventScroll: true });
    onShow?.(name);
  }

  show(first ?? (lessons.find(({ name }) => !progress.has(name)) ?? lessons[0]).name, false);
  scope.onClose(() => shown?.scope.close());
  return { show, destroy: () => scope.close() };
}

// Its number for each lesson, a tick on those that were answered; the lessons before and after; the glossary.
function newHead(root, { lessons, progress, show, openTerms }) {
  const bar = append(root, make("header", "ddviz-learn-head")).lastChild;
  const list = make("nav", "ddviz-learn-lessons");
  list.setAttribute("aria-label", "Lessons");
  const chips = lessons.map(({ name, title }, k) => {
    const chip = button("ddviz-learn-chip", String(k + 1), title, () => show(name));
    list.append(chip);
    return chip;
  });
  const count = make("span", "ddviz-muted");
  const forget = button("", "Begin again", "Forget which lessons were answered", clear);
  append(bar, lessons.length > 1 ? list : make("b", "ddviz-learn-brand", "ddviz"), count, make("span", "ddviz-gap"));
  append(bar, forget, button("", "Glossary", "The glossary", openTerms));
  let current = null;

  function clear() {
    progress.forget();
    mark(current);
  }

  function mark(name) {
    current = name;
    const done = lessons.filter((lesson) => progress.has(lesson.name)).length;
    lessons.forEach((lesson, k) => {
      const isDone = progress.has(lesson.name);
      const says = `Lesson ${k + 1}: ${lesson.title}${isDone ? " (answered)" : ""}`;
      chips[k].title = says;
      chips[k].setAttribute("aria-label", says);
      chips[k].classList.toggle("ddviz-learn-answered", isDone);
      if (lesson.name === name) chips[k].setAttribute("aria-current", "page");
      else chips[k].removeAttribute("aria-current");
    });
    count.textContent = lessons.length > 1 ? `${done} of ${lessons.length} answered` : done ? "✓ answered" : "";
    forget.hidden = !done;
  }

  return { mark };
}
