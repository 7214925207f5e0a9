// Which lessons were answered: kept in this browser alone, and only as long as the page is open where it keeps nothing.

const PROGRESS_KEY = "ddviz-learn";

function newProgress() {
  const done = new Set(read());

  function read() {
    try {
      const kept = JSON.parse(localStorage.getItem(PROGRESS_KEY) ?? "[]");
      return Array.isArray(kept) ? kept.filter((name) => typeof name === "string") : [];
    } catch {
      return [];
    }
  }

  function keep() {
    try {
      localStorage.setItem(PROGRESS_KEY, JSON.stringify([...done]));
    } catch {
      // storage is off or full
    }
  }

  return {
    has: (name) => done.has(name),
    add(name) {
      for (const other of read()) done.add(other); // answered in another tab since
      done.add(name);
      keep();
    },
    forget() {
      done.clear();
      keep();
    },
  };
}
