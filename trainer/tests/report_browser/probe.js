// Reports what a browser sees of the page to the frame around it.
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => errors.push("policy: " + event.violatedDirective));
addEventListener("load", () => setTimeout(() => {
  const channels = (color) => color.match(/[\d.]+/g).slice(0, 3).map(Number);
  const luminance = (color) => channels(color)
    .map((value) => value / 255)
    .map((value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
    .reduce((sum, value, idx) => sum + value * [0.2126, 0.7152, 0.0722][idx], 0);
  const contrast = (left, right) => {
    const [low, high] = [luminance(left), luminance(right)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const background = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (!/, 0\)$|transparent/.test(color)) return color;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) &&
    !element.closest("svg, script"));
  const low = texts.filter((element) => contrast(getComputedStyle(element).color, background(element)) < 4.5);
  const faint = [...document.querySelectorAll(".line, .dot")].filter((path) =>
    contrast(getComputedStyle(path).stroke, background(path.closest(".plot"))) < 3);
  const plots = [...document.querySelectorAll(".plot")].map((figure) => {
    const area = figure.querySelector(".area");
    const box = area.getBoundingClientRect();
    const marks = [...figure.querySelectorAll("path:not(.grid)")];
    const middle = { clientX: box.left + box.width / 2, clientY: box.top + 5 };
    area.dispatchEvent(new PointerEvent("pointermove", middle));
    const readout = figure.querySelector(".readout").textContent;
    area.dispatchEvent(new PointerEvent("pointerleave"));
    figure.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft", cancelable: true }));
    figure.dispatchEvent(new FocusEvent("blur"));
    return {
      title: figure.querySelector("h3").textContent,
      points: marks.reduce((sum, path) => sum + path.getAttribute("d").match(/[\d.]+,[\d.]+/g).length, 0),
      width: Math.round(box.width), height: Math.round(box.height), readout,
      description: figure.querySelector("desc").textContent,
    };
  });
  const seen = {
    errors, plots, title: document.title,
    requests: performance.getEntriesByType("resource").map((entry) => entry.name),
    dark: luminance(getComputedStyle(document.body).backgroundColor) < 0.1,
    width: innerWidth, page_width: document.documentElement.scrollWidth,
    smallest_text: Math.min(...texts.map((element) => parseFloat(getComputedStyle(element).fontSize))),
    low_contrast: [...low, ...faint].map((element) => element.tagName + "." + (element.getAttribute("class") ?? "")),
  };
  parent.report(JSON.stringify(seen));
}, 100));
