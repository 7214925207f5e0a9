// A line of plain text from Python: props.value = {text, error}.
const line = element.querySelector(".ddviz-notice");

function draw() {
  const { text = "", error = false } = props.value ?? {};
  line.textContent = text;
  line.hidden = !text;
  line.classList.toggle("ddviz-is-error", error);
  line.setAttribute("role", error ? "alert" : "status");
}

watch("value", draw);
draw();
