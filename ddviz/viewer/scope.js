// What must be undone at destroy(): listeners, observers, timers, frames.

// Listeners, observers, timers: everything that outlives a call is made here and ends with `close`.
function newScope() {
  const undo = [];
  const timers = new Map();
  const scope = {
    closed: false,
    listen(target, type, handler, options) {
      target.addEventListener(type, handler, options);
      undo.push(() => target.removeEventListener(type, handler, options));
    },
    observe(observer, ...targets) {
      for (const [target, options] of targets) observer.observe(target, options);
      undo.push(() => observer.disconnect());
    },
    later(name, ms, action) {
      clearTimeout(timers.get(name));
      if (!scope.closed) timers.set(name, setTimeout(action, ms));
    },
    cancel(name) {
      clearTimeout(timers.get(name));
      timers.delete(name);
    },
    onClose(action) {
      undo.push(action);
    },
    close() {
      scope.closed = true;
      for (const timer of timers.values()) clearTimeout(timer);
      timers.clear();
      for (const action of undo.splice(0)) action();
    },
  };
  return scope;
}

// One drawing per frame, however often it is asked for.
function newFrame(scope, draw) {
  let handle = null;
  scope.onClose(() => cancelAnimationFrame(handle));
  return () => {
    if (scope.closed) return;
    handle ??= requestAnimationFrame(() => {
      handle = null;
      draw();
    });
  };
}
