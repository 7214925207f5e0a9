// Steps that fly by under a held key: a panel draws at once what is in view, and the rest when they rest, since nobody
// reads it in between and a frame has room for little.

const STEPS_FLY = 200; // ms from one to the next

// flies(rest): whether the last call was just before; then `rest` is called when no other followed.
function newFlight(scope, name) {
  let last = -Infinity;
  return function flies(rest) {
    const isFlying = performance.now() - last < STEPS_FLY;
    last = performance.now();
    if (isFlying) scope.later(name, STEPS_FLY, rest);
    else scope.cancel(name);
    return isFlying;
  };
}
