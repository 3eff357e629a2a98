// Curves to read values from: one panel, a choice of the background, and the values of all models at the pointer.
(() => {
  const box = document.getElementById("curves"), curves = JSON.parse(document.getElementById("curve-data").textContent);
  const dashes = ["", "8 4", "8 3 2 3", "2 3", "8 3 2 3 2 3", "1 2"];
  const choice = document.createElement("select"), table = document.createElement("div");
  const svg = make("svg", {viewBox: "0 0 640 340", role: "img", "aria-label": "background efficiency"});
  const left = 100, right = 620, top = 12, bottom = 278;
  let from = 0.5, low = 1e-3;
  function make(name, about, words) {
    const each = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in about) each.setAttribute(key, about[key]);
    if (words !== undefined) each.textContent = words;
    return each;
  }
  const x = value => left + (value - from) / (1 - from) * (right - left);
  const y = value => bottom - Math.log(Math.max(value, low) / low) / Math.log(1 / low) * (bottom - top);
  const percent = value => (100 * value).toPrecision(3) + "\u00A0%";
  const look = number => ({style: `stroke: var(--model${number % 6})`, "stroke-dasharray": dashes[number % 6], "stroke-width": 2});
  function draw() {
    svg.replaceChildren();
    const models = Object.entries(curves[choice.value]);
    // Down to a background efficiency of 1e-3, where events suffice.
    const reached = models.map(([, each]) => each.signal_efficiency.findLast((value, place) => each.background_efficiency[place] > 0 && each.background_efficiency[place] <= 1e-3) ?? 1);
    from = Math.max(0, Math.floor(10 * Math.min(0.5, ...reached) - 0.5) / 10);
    const all = models.flatMap(([, each]) => each.background_efficiency.filter((value, place) => value > 0 && each.signal_efficiency[place] >= from));
    low = Math.pow(10, Math.floor(Math.log10(Math.min(0.1, ...all))));
    for (let value = from; value < 1.001; value += 0.1) {
      svg.append(make("line", {x1: x(value), x2: x(value), y1: top, y2: bottom, class: "grid"}));
      svg.append(make("text", {x: x(value), y: bottom + 26, "text-anchor": "middle"}, value.toFixed(1)));
    }
    for (let value = low; value < 1.001; value *= 10) {
      svg.append(make("line", {x1: left, x2: right, y1: y(value), y2: y(value), class: "grid"}));
      svg.append(make("text", {x: left - 6, y: y(value) + 4, "text-anchor": "end"}, String(Number(value.toPrecision(1)))));
    }
    svg.append(make("text", {x: right, y: bottom + 54, "text-anchor": "end"}, "Efficiency of " + box.dataset.signal));
    svg.append(make("text", {x: -top, y: 18, transform: "rotate(-90)", "text-anchor": "end"}, "Background efficiency"));
    models.forEach(([, each], number) => {
      const points = each.signal_efficiency.map((value, place) => [value, each.background_efficiency[place]])
        .filter(([value, left]) => value >= from && left > 0).map(([value, left]) => x(value).toFixed(1) + "," + y(left).toFixed(1));
      svg.append(make("polyline", {points: points.join(" "), fill: "none", ...look(number)}));
    });
    show(Math.min(0.9, Number(box.dataset.last)));
  }
  function show(wanted) {
    svg.querySelector(".at")?.remove();
    const models = Object.entries(curves[choice.value]), grid = models[0][1].signal_efficiency;
    const place = grid.reduce((best, value, each) => Math.abs(value - wanted) < Math.abs(grid[best] - wanted) ? each : best, 0);
    svg.append(make("line", {x1: x(grid[place]), x2: x(grid[place]), y1: top, y2: bottom, class: "at"}));
    table.replaceChildren(`Efficiency of ${box.dataset.signal} ${percent(grid[place])}`);
    models.forEach(([name, each], number) => {
      const line = document.createElement("div"), mark = make("svg", {viewBox: "0 0 30 8"}), value = each.background_efficiency[place];
      mark.append(make("line", {x1: 0, x2: 30, y1: 4, y2: 4, ...look(number)}));
      const low = (100 * each.low[place]).toPrecision(3), high = percent(each.high[place]);
      if (grid[place] > Number(box.dataset.last)) line.append(mark, ` ${name}: not measurable`);
      else line.append(mark, value > 0 ? ` ${name}: ${percent(value)} (${low} to ${high})` : ` ${name}: <\u00A0${high}`);
      table.append(line);
    });
  }
  for (const name in curves) choice.add(new Option("against " + name, name));
  choice.setAttribute("aria-label", "background");
  choice.onchange = draw;
  svg.addEventListener("pointermove", event => {
    const place = svg.getBoundingClientRect(), across = (event.clientX - place.left) / place.width * 640;
    show(Math.min(1, Math.max(from, from + (across - left) / (right - left) * (1 - from))));
  });
  box.append(choice, svg, table);
  draw();
})();
