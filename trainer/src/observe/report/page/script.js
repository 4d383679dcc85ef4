// Read-outs under the pointer or, with the arrow keys, along the focused plot. The page is complete without them.
for (const figure of document.querySelectorAll(".plot")) {
  const curves = JSON.parse(figure.dataset.plot);
  const area = figure.querySelector(".area");
  const places = new Map(curves.flatMap(([, , places, steps]) => steps.map((step, idx) => [step, places[idx]])));
  const steps = [...places.keys()].sort((left, right) => left - right);
  const cursor = Object.assign(document.createElement("div"), { className: "cursor", hidden: true });
  const readout = Object.assign(document.createElement("div"), { className: "readout", hidden: true });
  area.append(cursor, readout);
  let current = steps.length - 1;

  const show = (idx) => {
    current = Math.max(0, Math.min(steps.length - 1, idx));
    const step = steps[current];
    const place = places.get(step);
    const rows = curves.flatMap(([label, color, , own, values]) => {
      const at = own.indexOf(step);
      if (at < 0) return [];
      const row = document.createElement("span");
      row.className = "c" + color;
      row.textContent = label + " " + values[at];
      return [row];
    });
    readout.replaceChildren("step " + Math.round(step), ...rows);
    cursor.hidden = readout.hidden = false;
    cursor.style.left = 100 * place + "%";
    const right = place > 0.5;
    readout.style.left = right ? "auto" : `calc(${100 * place}% + .6rem)`;
    readout.style.right = right ? `calc(${100 * (1 - place)}% + .6rem)` : "auto";
  };
  const hide = () => { cursor.hidden = readout.hidden = true; };

  area.addEventListener("pointermove", (event) => {
    const box = area.getBoundingClientRect();
    const place = (event.clientX - box.left) / box.width;
    const distance = (step) => Math.abs(places.get(step) - place);
    show(steps.reduce((best, step, idx) => (distance(step) < distance(steps[best]) ? idx : best), 0));
  });
  area.addEventListener("pointerleave", hide);
  figure.addEventListener("blur", hide);
  figure.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) { event.preventDefault(); show(readout.hidden ? current : current + move); }
  });
}
