// Numbers and texts as they are shown.

const ABSENT = "–";

// 0.8230, 0.000412, 1.2e-9: four digits, and never a false zero.
function precise(value, digits = 4) {
  if (value === null || value === undefined) return ABSENT;
  if (Number.isInteger(value)) return String(value);
  const magnitude = Math.abs(value);
  if (magnitude < 1e-4 || magnitude >= 1e7) return value.toExponential(2);
  return value.toPrecision(Math.max(digits, Math.ceil(Math.log10(magnitude))));
}

function probability(value) {
  if (value === null || value === undefined) return ABSENT;
  if (value === 0 || value === 1) return String(value);
  return value >= 0.0005 ? value.toFixed(3) : value.toExponential(1);
}

function milliseconds(value) {
  if (value === null || value === undefined) return ABSENT;
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

function shorten(text, most) {
  const characters = Array.from(text);
  return characters.length <= most ? text : characters.slice(0, most - 1).join("") + "…";
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}
