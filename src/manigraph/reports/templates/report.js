"use strict";
(() => {
  // ---- Small helpers -------------------------------------------------------------------------------------

  const ARRAYS = { int16: Int16Array, int32: Int32Array, float32: Float32Array };
  const root = document.documentElement;
  let figures = JSON.parse(document.getElementById("figures").textContent);

  function unpack(packed) {
    const bytes = Uint8Array.from(atob(packed.data), (character) => character.charCodeAt(0));
    if (packed.type === "float16") return halves(new Uint16Array(bytes.buffer));
    return new ARRAYS[packed.type](bytes.buffer);
  }

  function halves(words) {
    // Half precision: one sign, five exponent and ten fraction bits.
    return Float32Array.from(words, (word) => {
      const exponent = (word >> 10) & 31, fraction = word & 1023, sign = word >> 15 ? -1 : 1;
      if (exponent === 0) return sign * fraction * 2 ** -24;
      return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
    });
  }

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const rgb = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

  function element(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  function vector(tag, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  const redrawn = new Set();
  const redrawAll = () => redrawn.forEach((figure) => figure.draw());

  // ---- Thumbnails: one picture for many ------------------------------------------------------------------

  function showTile(target, sheetName, number, size) {
    const sheet = figures[sheetName];
    if (!sheet) return;
    const [width, height] = sheet.tile, factor = size / Math.max(width, height);
    target.style.width = `${width * factor}px`;
    target.style.height = `${height * factor}px`;
    target.style.backgroundImage = `url(${sheet.address})`;
    target.style.backgroundSize = `${sheet.columns * width * factor}px ${sheet.rows * height * factor}px`;
    const column = number % sheet.columns, row = Math.floor(number / sheet.columns);
    target.style.backgroundPosition = `${-column * width * factor}px ${-row * height * factor}px`;
  }

  function showTiles(within) {
    within.querySelectorAll(".thumb[data-sheet]").forEach((tile) => {
      const closed = tile.closest("details:not([open])");
      if (closed) {
        closed.addEventListener("toggle", () => showTiles(closed), { once: true });
        return;
      }
      showTile(tile, tile.dataset.sheet, Number(tile.dataset.tile), Number(tile.dataset.size));
    });
  }

  // ---- Looking closer: what wheel, drag, pinch and keys do to a view -----------------------------------------

  class View {
    // Places from 0 to 1 are shown at `scale` times their place, moved by x and y (in shares of the stage, or
    // of what the inset, pixels at the left and below, leaves of it).
    constructor(stage, changed) {
      Object.assign(this, { stage, changed, scale: 1, x: 0, y: 0, inset: [0, 0], pointers: new Map() });
      stage.addEventListener("wheel", (event) => {
        // Until it is asked for (a click, or Ctrl), the wheel scrolls the page.
        const asked = event.ctrlKey || event.metaKey || this.scale > 1 || stage.contains(document.activeElement);
        if (!asked) return;
        event.preventDefault();
        this.zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.002)), ...this.place(event));
      }, { passive: false });
      stage.addEventListener("dblclick", () => this.reset());
      stage.addEventListener("pointerdown", (event) => {
        this.pointers.set(event.pointerId, this.place(event));
      });
      stage.addEventListener("pointermove", (event) => this.drag(event));
      for (const name of ["pointerup", "pointercancel", "pointerleave"]) {
        stage.addEventListener(name, (event) => this.pointers.delete(event.pointerId));
      }
    }

    place(event) {
      const box = this.stage.getBoundingClientRect(), [left, below] = this.inset;
      return [(event.clientX - box.left - left) / (box.width - left), (event.clientY - box.top) / (box.height - below)];
    }

    drag(event) {
      const before = this.pointers.get(event.pointerId);
      if (!before) return;
      const now = this.place(event);
      if (this.pointers.size === 2) {
        const [other] = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
        const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
        const factor = distance(now, other) / Math.max(distance(before, other), 1e-6);
        this.zoom(factor, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
      } else if (this.scale > 1) {
        this.move(now[0] - before[0], now[1] - before[1]);
      }
      this.pointers.set(event.pointerId, now);
    }

    zoom(factor, x = 0.5, y = 0.5) {
      const scale = clamp(this.scale * factor, 1, 60);
      this.x = x - (x - this.x) * (scale / this.scale);
      this.y = y - (y - this.y) * (scale / this.scale);
      this.scale = scale;
      this.settle();
    }

    move(x, y) {
      this.x += x;
      this.y += y;
      this.settle();
    }

    reset() {
      Object.assign(this, { scale: 1, x: 0, y: 0 });
      this.settle();
    }

    settle() {
      this.x = clamp(this.x, 1 - this.scale, 0);
      this.y = clamp(this.y, 1 - this.scale, 0);
      this.stage.classList.toggle("zoomed", this.scale > 1);
      this.stage.dataset.scale = this.scale.toFixed(3);
      this.changed();
    }
  }

  function fit(canvas) {
    const box = canvas.getBoundingClientRect(), density = window.devicePixelRatio || 1;
    const width = Math.max(1, Math.round(box.width * density)), height = Math.max(1, Math.round(box.height * density));
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d");
    context.setTransform(density, 0, 0, density, 0, 0);
    context.clearRect(0, 0, box.width, box.height);
    return [context, box.width, box.height];
  }

  // ---- The map -----------------------------------------------------------------------------------------------

  class PointMap {
    constructor(section) {
      this.section = section;
      this.stage = section.querySelector(".stage");
      this.canvas = section.querySelector("canvas");
      this.tip = section.querySelector(".tip");
      this.readout = section.querySelector(".readout");
      this.legend = section.querySelector(".legend");
      this.blend = 1; // 0 is before the graph, 1 after it
      this.hidden = new Set();
      this.focus = null;
      this.onlyWrong = false;
      this.read();
      this.view = new View(this.stage, () => this.draw());
      this.makeLegend();
      this.listen();
      redrawn.add(this);
      new ResizeObserver(() => this.draw()).observe(this.stage);
      this.canvas.figure = this;
    }

    read() {
      const data = figures.map;
      const points = (side) => data[side] && unpack(data[side]);
      this.count = unpack(data.class).length;
      Object.assign(this, { index: unpack(data.index), classes: unpack(data.class) });
      this.answers = { after: [unpack(data.predicted), unpack(data.confidence)] };
      this.places = { before: points("before"), after: points("after") || points("before") };
      this.answers.before = data.after
        ? [unpack(data.predicted_before), unpack(data.confidence_before)] : this.answers.after;
      this.nodes = data.nodes && {
        kind: data.nodes.kind, classes: unpack(data.nodes.class),
        before: unpack(data.nodes.before), after: unpack(data.nodes.after),
      };
      this.total = this.count + (this.nodes ? this.nodes.classes.length : 0);
    }

    get side() { return this.blend < 0.5 ? "before" : "after"; }
    isWrong(point) { return this.answers[this.side][0][point] !== this.classes[point]; }
    classOf(point) { return point < this.count ? this.classes[point] : this.nodes.classes[point - this.count]; }

    isShown(point) {
      if (this.hidden.has(this.classOf(point))) return false;
      return point >= this.count ? !this.onlyWrong : !this.onlyWrong || this.isWrong(point);
    }

    at(point) {
      const from = point < this.count ? this.places : this.nodes, i = 2 * (point < this.count ? point : point - this.count);
      const mix = (offset) => from.before[i + offset] * (1 - this.blend) + from.after[i + offset] * this.blend;
      const edge = 18, square = Math.min(this.width, this.height) - 2 * edge;
      const x = (this.width - square) / 2 + mix(0) * square, y = (this.height - square) / 2 + mix(1) * square;
      const { scale } = this.view;
      return [x * scale + this.view.x * this.width, y * scale + this.view.y * this.height];
    }

    draw() {
      const [context, width, height] = fit(this.canvas);
      Object.assign(this, { width, height });
      const ring = colour("--ring"), surface = colour("--surface");
      const radius = clamp(90 / Math.sqrt(this.count), 1.6, 4.5) * Math.pow(this.view.scale, 0.4);
      const groups = figures.colours.map(() => []), wrong = figures.colours.map(() => []);
      for (let point = 0; point < this.count; point += 1) {
        if (!this.isShown(point)) continue;
        const [x, y] = this.at(point);
        if (x < -9 || y < -9 || x > width + 9 || y > height + 9) continue;
        (this.isWrong(point) ? wrong : groups)[this.classes[point]].push([x, y]);
      }
      const circle = ([x, y]) => { context.moveTo(x + radius, y); context.arc(x, y, radius, 0, 7); };
      // One path for each class: thousands of single circles would not be smooth.
      const fill = (all) => all.forEach((places, number) => {
        if (!places.length) return;
        context.beginPath();
        places.forEach(circle);
        context.fillStyle = figures.colours[number];
        context.fill();
      });
      context.globalAlpha = 0.78;
      fill(groups);
      context.globalAlpha = 1;
      fill(wrong);
      context.lineWidth = Math.max(1, radius / 2.6);
      context.strokeStyle = ring;
      context.beginPath();
      wrong.forEach((places) => places.forEach(circle));
      context.stroke();
      for (let point = this.count; point < this.total; point += 1) {
        if (!this.isShown(point)) continue;
        const [x, y] = this.at(point);
        star(context, x, y, (radius * 2.1 + 2) * (this.total - this.count > 500 ? 0.6 : 1), figures.colours[this.classOf(point)], ring, surface);
      }
      if (this.focus !== null && this.isShown(this.focus)) {
        const [x, y] = this.at(this.focus);
        context.beginPath();
        context.arc(x, y, radius + 5, 0, 7);
        context.lineWidth = 2;
        context.strokeStyle = colour("--accent");
        context.stroke();
      }
      this.stage.dataset.drawn = String([...groups, ...wrong].reduce((sum, places) => sum + places.length, 0));
    }

    nearest(x, y, within, accept = () => true) {
      let best = null, least = within;
      for (let point = 0; point < this.total; point += 1) {
        if (!this.isShown(point)) continue;
        const [px, py] = this.at(point), distance = Math.hypot(px - x, py - y);
        if (distance < least && accept(px - x, py - y, point)) { best = point; least = distance; }
      }
      return best;
    }

    describe(point) {
      const name = figures.classes[this.classOf(point)];
      if (point >= this.count) {
        return [`${this.nodes.kind === "prototypes" ? "prototype" : "node"} of ${name}`];
      }
      const [predicted, confidence] = this.answers[this.side];
      const answer = `${figures.classes[predicted[point]]}, ${percent(confidence[point])}`;
      return [`is ${name}`, `taken for ${answer}`, `image ${this.index[point]}`];
    }

    show(point) {
      this.focus = point;
      this.tip.hidden = point === null;
      this.draw();
      if (point === null) return;
      const lines = this.describe(point);
      this.tip.replaceChildren();
      if (point < this.count && figures.thumbnails) {
        const thumb = element("div", { class: "thumb" });
        showTile(thumb, "thumbnails", point, 96);
        this.tip.append(thumb);
      }
      lines.forEach((line, number) => this.tip.append(element(number ? "div" : "strong", {}, line)));
      this.readout.textContent = lines.join("; ");
      const [x, y] = this.at(point), box = this.tip.getBoundingClientRect();
      this.tip.style.left = `${clamp(x + 14 + box.width > this.width ? x - box.width - 14 : x + 14, 2, this.width)}px`;
      this.tip.style.top = `${clamp(y + 14, 2, Math.max(2, this.height - box.height - 2))}px`;
    }

    listen() {
      const seen = (event) => {
        const box = this.canvas.getBoundingClientRect();
        this.show(this.nearest(event.clientX - box.left, event.clientY - box.top, event.pointerType === "touch" ? 26 : 14));
      };
      let waiting = false;
      this.canvas.addEventListener("pointermove", (event) => {
        if (waiting || this.view.pointers.size) return;
        waiting = true;
        requestAnimationFrame(() => { waiting = false; seen(event); });
      });
      this.canvas.addEventListener("click", seen);
      this.canvas.addEventListener("pointerleave", () => this.show(null));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      this.section.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
        const what = button.dataset.zoom;
        if (what === "reset") this.view.reset(); else this.view.zoom(what === "in" ? 1.6 : 1 / 1.6);
      }));
      this.section.querySelectorAll("input[name=side]").forEach((input) => input.addEventListener("change", () => {
        this.slide(input.value === "after" ? 1 : 0);
      }));
      this.section.querySelector("#only-wrong").addEventListener("change", (event) => {
        this.onlyWrong = event.target.checked;
        this.settle();
      });
    }

    slide(target) {
      const start = performance.now(), from = this.blend;
      const quick = matchMedia("(prefers-reduced-motion: reduce)").matches || this.count > 20000;
      const step = (now) => {
        const share = quick ? 1 : clamp((now - start) / 550, 0, 1);
        this.blend = from + (target - from) * (share * share * (3 - 2 * share));
        this.draw();
        if (share < 1) { requestAnimationFrame(step); return; }
        this.stage.dataset.side = this.side;
        this.settle();
      };
      requestAnimationFrame(step);
    }

    key(event) {
      const ways = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      if (event.key in ways) {
        const [x, y] = ways[event.key];
        const from = this.focus === null ? [this.width / 2, this.height / 2] : this.at(this.focus);
        const ahead = (dx, dy, point) => point !== this.focus && dx * x + dy * y > Math.abs(dx * y) + Math.abs(dy * x);
        const next = this.focus === null ? this.nearest(...from, Infinity) : this.nearest(...from, Infinity, ahead);
        if (next !== null) this.show(next);
      } else if (event.key === "+" || event.key === "=") {
        const at = this.focus === null ? [0.5, 0.5] : [this.at(this.focus)[0] / this.width, this.at(this.focus)[1] / this.height];
        this.view.zoom(1.5, ...at);
      } else if (event.key === "-") this.view.zoom(1 / 1.5);
      else if (event.key === "0") this.view.reset();
      else if (event.key === "Escape") this.show(null);
      else return;
      event.preventDefault();
    }

    makeLegend() {
      this.buttons = figures.classes.map((name, number) => {
        const swatch = element("span", { class: "swatch" });
        swatch.style.background = figures.colours[number];
        const button = element("button", { type: "button", "aria-pressed": "true", title: name }, swatch, element("span", { class: "text" }, name));
        button.addEventListener("click", () => {
          this.setShown([number], this.hidden.has(number));
        });
        return button;
      });
      this.legend.replaceChildren(...this.buttons);
      this.section.querySelectorAll("[data-classes]").forEach((button) => button.addEventListener("click", () => {
        this.setShown([...figures.classes.keys()], button.dataset.classes === "all");
      }));
      const search = this.section.querySelector("#find-class");
      if (search) search.addEventListener("input", () => {
        const text = search.value.toLowerCase();
        const found = (number) => figures.classes[number].toLowerCase().includes(text);
        this.buttons.forEach((button, number) => { button.hidden = !found(number); });
        this.setShown([...figures.classes.keys()].filter((number) => !found(number)), false);
        this.setShown([...figures.classes.keys()].filter(found), true);
      });
    }

    setShown(numbers, shown) {
      numbers.forEach((number) => {
        if (shown) this.hidden.delete(number); else this.hidden.add(number);
        this.buttons[number].setAttribute("aria-pressed", String(shown));
      });
      this.settle();
    }

    // What is said about a point changes with the view, or ends where it is no longer shown.
    settle() {
      this.show(this.focus !== null && this.isShown(this.focus) ? this.focus : null);
    }

    update() {
      this.read();
      this.draw();
    }
  }

  function star(context, x, y, radius, fill, ring, halo) {
    context.beginPath();
    for (let corner = 0; corner < 10; corner += 1) {
      const angle = Math.PI * (corner / 5 - 0.5), length = corner % 2 ? radius * 0.45 : radius;
      context.lineTo(x + length * Math.cos(angle), y + length * Math.sin(angle));
    }
    context.closePath();
    context.lineWidth = 3;
    context.strokeStyle = halo;
    context.stroke();
    context.fillStyle = fill;
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = ring;
    context.stroke();
  }

  // ---- Matrices ----------------------------------------------------------------------------------------------

  class Matrix {
    constructor(stage, name) {
      this.stage = stage;
      this.name = name;
      this.readout = stage.parentElement.querySelector(".readout");
      const title = stage.parentElement.querySelector("h3").textContent;
      this.canvas = element("canvas", { tabindex: "0", role: "application", "aria-label": `${title}. Arrow keys go from cell to cell, plus and minus zoom, 0 shows all.` });
      stage.append(this.canvas);
      this.view = new View(stage, () => this.draw());
      this.cell = null;
      this.read();
      this.canvas.addEventListener("pointermove", (event) => {
        if (!this.view.pointers.size) this.show(this.cellAt(...this.view.place(event)));
      });
      this.canvas.addEventListener("click", (event) => this.show(this.cellAt(...this.view.place(event))));
      this.canvas.addEventListener("pointerleave", () => this.show(null));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
      redrawn.add(this);
      new ResizeObserver(() => this.draw()).observe(stage);
      this.canvas.figure = this;
    }

    read() {
      if (this.name === "confusion") {
        const { counts } = figures.confusion;
        this.rows = this.columns = counts.length;
        const sums = counts.map((row) => row.reduce((sum, count) => sum + count, 0));
        this.weights = Float32Array.from(counts.flatMap((row, r) => row.map((count) => (sums[r] ? count / sums[r] : 0))));
        this.deepest = 1;
      } else {
        const data = figures.edges[this.name];
        [this.rows, this.columns] = data.shape;
        this.weights = unpack(data.weights);
        if (data.row_class) {
          this.rowClass = unpack(data.row_class);
          this.columnClass = unpack(data.column_class);
        }
        // The strongest tenth of what could be the own class is equally deep.
        const sorted = Float32Array.from(this.weights).sort();
        const place = Math.floor((sorted.length - 1) * (1 - 0.1 / figures.classes.length));
        this.deepest = Math.max(1 / this.columns, sorted[place]);
      }
      this.canvas.style.aspectRatio = "1 / 1";
      const longest = Math.max(...figures.classes.map((name) => name.length));
      this.view.inset = figures.classes.length <= 20 ? [Math.min(90, 12 + 7 * longest), 20] : [0, 0];
    }

    picture() {
      const low = rgb(colour("--ramp-0")), high = rgb(colour("--ramp-1"));
      const image = new ImageData(this.columns, this.rows);
      this.weights.forEach((weight, cell) => {
        const depth = Math.sqrt(clamp(weight / this.deepest, 0, 1));
        for (let channel = 0; channel < 3; channel += 1) {
          image.data[4 * cell + channel] = low[channel] + (high[channel] - low[channel]) * depth;
        }
        image.data[4 * cell + 3] = 255;
      });
      const picture = document.createElement("canvas");
      Object.assign(picture, { width: this.columns, height: this.rows });
      picture.getContext("2d").putImageData(image, 0, 0);
      return picture;
    }

    draw() {
      const theme = colour("--ramp-0") + this.version;
      if (theme !== this.theme) { this.pixels = this.picture(); this.theme = theme; }
      const [context, fullWidth, fullHeight] = fit(this.canvas);
      const { scale, x, y, inset } = this.view;
      const width = fullWidth - inset[0], height = fullHeight - inset[1];
      const w = width * scale, h = height * scale, left = inset[0] + x * width, top = y * height;
      this.labels(context, left, top, w, h, fullHeight);
      context.save();
      context.beginPath();
      context.rect(inset[0], 0, width, height);
      context.clip();
      context.imageSmoothingEnabled = this.rows > height * scale;
      context.imageSmoothingQuality = "high";
      context.drawImage(this.pixels, left, top, w, h);
      context.strokeStyle = colour("--muted");
      context.globalAlpha = 0.45;
      context.lineWidth = 0.5;
      context.beginPath();
      const borders = (classes, count) => classes
        ? [...classes.keys()].filter((number) => number && classes[number] !== classes[number - 1])
        : (count <= 30 ? [...Array(count).keys()].slice(1) : []);
      for (const row of borders(this.rowClass, this.rows)) {
        context.moveTo(left, top + (row / this.rows) * h);
        context.lineTo(left + w, top + (row / this.rows) * h);
      }
      for (const column of borders(this.columnClass, this.columns)) {
        context.moveTo(left + (column / this.columns) * w, top);
        context.lineTo(left + (column / this.columns) * w, top + h);
      }
      context.stroke();
      context.globalAlpha = 1;
      if (this.cell) {
        const [row, column] = this.cell;
        context.strokeStyle = colour("--bad");
        context.lineWidth = 2;
        context.strokeRect(left + (column / this.columns) * w, top + (row / this.rows) * h, Math.max(3, w / this.columns), Math.max(3, h / this.rows));
      }
      context.restore();
    }

    // Names of the classes beside and below, each at the middle of its block, where there is room for them.
    labels(context, left, top, w, h, fullHeight) {
      if (!this.view.inset[0]) return;
      const middles = (classes, count) => figures.classes.map((_, number) => {
        if (!classes) return (number + 0.5) / count;
        const first = classes.indexOf(number), last = classes.lastIndexOf(number);
        return first < 0 ? null : (first + last + 1) / 2 / count;
      });
      const [gutter, below] = this.view.inset, height = fullHeight - below;
      const name = (number, room) => {
        let text = figures.classes[number];
        while (text.length > 1 && context.measureText(text).width > room) text = `${text.slice(0, -2)}…`;
        return text;
      };
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = colour("--muted");
      context.textBaseline = "middle";
      middles(this.rowClass, this.rows).forEach((middle, number) => {
        const at = top + middle * h;
        if (middle === null || at < 6 || at > height - 6) return;
        context.textAlign = "right";
        context.fillText(name(number, gutter - 8), gutter - 6, at);
      });
      const room = w / figures.classes.length - 2;
      middles(this.columnClass, this.columns).forEach((middle, number) => {
        const at = left + middle * w;
        if (middle === null || at < gutter + 4) return;
        context.textAlign = "center";
        context.fillText(name(number, room), at, height + below / 2);
      });
    }

    cellAt(x, y) {
      const { scale } = this.view;
      const column = Math.floor(((x - this.view.x) / scale) * this.columns), row = Math.floor(((y - this.view.y) / scale) * this.rows);
      return row < 0 || column < 0 || row >= this.rows || column >= this.columns ? null : [row, column];
    }

    show(cell) {
      this.cell = cell;
      this.draw();
      if (!cell) return;
      const [row, column] = cell, weight = this.weights[row * this.columns + column];
      const of = (classes, number) => figures.classes[classes ? classes[number] : number];
      if (this.name === "confusion") {
        const count = figures.confusion.counts[row][column];
        this.readout.textContent = row === column
          ? `${of(null, row)}: ${percent(weight)} right (${count} images)`
          : `${of(null, row)} taken for ${of(null, column)}: ${percent(weight)} (${count} images)`;
        return;
      }
      const per = this.rowClass ? this.columns / figures.classes.length : 1;
      const from = this.name === "images"
        ? `image ${unpack(figures.edges.image_index)[row]}, ${of(this.rowClass, row)}`
        : this.name === "among" ? `${of(this.rowClass, row)} no. ${(row % per) + 1}`
          : `${this.name === "by_class" ? "images" : "nodes"} of ${of(null, row)}`;
      const to = this.columnClass ? `${of(this.columnClass, column)} no. ${(column % per) + 1}` : `nodes of ${of(null, column)}`;
      this.readout.textContent = `${from} → ${to}: ${percent(weight)}`;
    }

    key(event) {
      const ways = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      if (event.key in ways) {
        const [row, column] = this.cell || [0, 0], [down, right] = ways[event.key];
        this.show([clamp(row + down, 0, this.rows - 1), clamp(column + right, 0, this.columns - 1)]);
        const [x, y] = this.placeOfCell();
        if (Math.min(x, y) < 0 || Math.max(x, y) > 1) this.view.move(clamp(x, 0.1, 0.9) - x, clamp(y, 0.1, 0.9) - y);
      } else if (event.key === "+" || event.key === "=") this.view.zoom(1.5, ...this.placeOfCell());
      else if (event.key === "-") this.view.zoom(1 / 1.5, ...this.placeOfCell());
      else if (event.key === "0") this.view.reset();
      else return;
      event.preventDefault();
    }

    placeOfCell() {
      if (!this.cell) return [0.5, 0.5];
      const { x, y, scale } = this.view, [row, column] = this.cell;
      return [x + (scale * (column + 0.5)) / this.columns, y + (scale * (row + 0.5)) / this.rows];
    }

    update() {
      this.read();
      this.version = (this.version || 0) + 1;
      this.draw();
    }
  }

  // ---- Charts ------------------------------------------------------------------------------------------------

  const SERIES = ["#3f90da", "#e76300", "#832db6", "#a96b59", "#bd1f01", "#94a4a2", "#b9ac70", "#717581", "#ffa90e", "#5aa9ad"];
  const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
  const SIZE = { width: 560, height: 300, left: 52, right: 22, top: 10, bottom: 34 };

  function ticks(low, high, count) {
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough * 0.9) || 10);
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(value);
    return found;
  }

  function decades(low, high) {
    const found = [];
    for (let power = Math.floor(low); power <= Math.ceil(high); power += 1) {
      for (const factor of high - low < 1.5 ? [1, 2, 5] : [1]) {
        const value = power + Math.log10(factor);
        if (value >= low - 1e-9 && value <= high + 1e-9) found.push(value);
      }
    }
    return found;
  }

  const short = (value) => {
    const size = Math.abs(value);
    if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
    if (size >= 1e4) return `${+(value / 1e3).toPrecision(3)}k`;
    if (size !== 0 && size < 1e-3) return value.toExponential(0);
    return `${+value.toPrecision(3)}`;
  };

  class LineChart {
    // Series have a name, x and y, perhaps a spread; `options` says what the axes are.
    constructor(box, series, options) {
      Object.assign(this, { box, options, hidden: new Set(), range: null });
      this.svg = vector("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img" });
      this.legend = element("div", { class: "legend", role: "group", "aria-label": "Lines shown" });
      this.controls = element("div", { class: "controls" });
      this.readout = element("p", { class: "readout", "aria-live": "polite" });
      if (options.mayBeLog) {
        const input = element("input", { type: "checkbox" });
        input.checked = Boolean(options.log);
        input.addEventListener("change", () => { options.log = input.checked; this.draw(); });
        this.controls.append(element("label", {}, input, "logarithmic"));
      }
      this.whole = element("button", { type: "button" }, "Whole run");
      this.whole.hidden = true;
      this.whole.addEventListener("click", () => this.look(null));
      this.controls.append(this.whole);
      box.replaceChildren(this.svg, this.readout, this.controls, this.legend);
      this.listen();
      this.set(series);
      redrawn.add(this);
      box.figure = this;
    }

    set(series) {
      this.series = series.map((line, number) => ({
        colour: SERIES[number % SERIES.length], dash: DASHES[Math.floor(number / SERIES.length) % DASHES.length], ...line,
      }));
      this.legend.replaceChildren(...this.series.map((line) => {
        const swatch = element("span", { class: "swatch line" });
        swatch.style.background = line.colour;
        const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(line.name)), title: line.name }, swatch, element("span", { class: "text" }, line.name));
        button.addEventListener("click", () => {
          if (!this.hidden.delete(line.name)) this.hidden.add(line.name);
          button.setAttribute("aria-pressed", String(!this.hidden.has(line.name)));
          this.draw();
        });
        return button;
      }));
      this.draw();
    }

    look(range) {
      this.range = range;
      this.whole.hidden = range === null;
      this.draw();
    }

    get shown() { return this.series.filter((line) => !this.hidden.has(line.name)); }

    draw() {
      const { options } = this, { width, height, left, right, top, bottom } = SIZE;
      const tx = (x) => (options.logX ? Math.log10(x) : x), ty = (y) => (options.log ? Math.log10(y) : y);
      const usable = (y) => y !== null && Number.isFinite(y) && (!options.log || y > 0);
      let lowX = Infinity, highX = -Infinity, lowY = Infinity, highY = -Infinity;
      for (const line of this.shown) {
        line.x.forEach((x, i) => { lowX = Math.min(lowX, tx(x)); highX = Math.max(highX, tx(x)); });
      }
      if (this.range) [lowX, highX] = this.range;
      for (const line of this.shown) {
        line.x.forEach((x, i) => {
          const at = tx(x), spread = (line.spread && line.spread[i]) || 0;
          if (at < lowX || at > highX || !usable(line.y[i])) return;
          const under = usable(line.y[i] - spread) ? line.y[i] - spread : line.y[i];
          lowY = Math.min(lowY, ty(under));
          highY = Math.max(highY, ty(line.y[i] + spread));
        });
      }
      if (!Number.isFinite(lowX) || !Number.isFinite(lowY)) { [lowX, highX, lowY, highY] = [0, 1, 0, 1]; }
      if (options.from !== undefined && !options.log) lowY = Math.min(lowY, options.from);
      if (options.to !== undefined && !options.log) highY = Math.max(highY, options.to);
      if (highX === lowX) { lowX -= 0.5; highX += 0.5; }
      if (highY === lowY) { lowY -= 0.5; highY += 0.5; }
      const room = (highY - lowY) * 0.04;
      [lowY, highY] = [options.from !== undefined && lowY === options.from ? lowY : lowY - room, highY + room];
      const px = (x) => left + ((x - lowX) / (highX - lowX)) * (width - left - right);
      const py = (y) => height - bottom - ((y - lowY) / (highY - lowY)) * (height - top - bottom);
      Object.assign(this, { px: (x) => px(tx(x)), py: (y) => py(ty(y)), inverse: (at) => lowX + ((at - left) / (width - left - right)) * (highX - lowX), tx });

      const parts = [];
      for (const y of options.log ? decades(lowY, highY) : ticks(lowY, highY, 5)) {
        parts.push(vector("line", { class: "grid", x1: left, x2: width - right, y1: py(y), y2: py(y) }));
        parts.push(vector("text", { x: left - 6, y: py(y) + 4, "text-anchor": "end" }, short(options.log ? 10 ** y : y)));
      }
      const xTicks = options.xTicks ? options.xTicks.map(tx) : options.logX ? decades(lowX, highX) : ticks(lowX, highX, 6);
      for (const x of xTicks) {
        if (x < lowX || x > highX) continue;
        parts.push(vector("line", { class: "axis", x1: px(x), x2: px(x), y1: height - bottom, y2: height - bottom + 4 }));
        parts.push(vector("text", { x: px(x), y: height - bottom + 16, "text-anchor": "middle" }, short(options.logX ? 10 ** x : x)));
      }
      parts.push(vector("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
      parts.push(vector("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, options.xLabel || "step"));
      const clip = `clip-${this.options.id}`;
      const definition = vector("clipPath", { id: clip });
      definition.append(vector("rect", { x: left, y: top - 4, width: width - left - right, height: height - top - bottom + 8 }));
      const inside = vector("g", { "clip-path": `url(#${clip})` });
      if (options.bars) {
        for (const bar of options.bars) {
          inside.append(vector("rect", { x: px(bar.low) + 1, width: Math.max(1, px(bar.high) - px(bar.low) - 2), y: py(bar.accuracy), height: Math.max(0, py(0) - py(bar.accuracy)), fill: SERIES[0], opacity: 0.3 + 0.7 * bar.weight }));
        }
      }
      for (const line of this.shown) {
        let path = "", isOpen = false;
        line.x.forEach((x, i) => {
          if (!usable(line.y[i])) { isOpen = false; return; }
          path += `${isOpen ? "L" : "M"}${this.px(x).toFixed(1)} ${this.py(line.y[i]).toFixed(1)}`;
          isOpen = true;
          const spread = line.spread && line.spread[i];
          if (spread) {
            const under = usable(line.y[i] - spread) ? line.y[i] - spread : line.y[i];
            inside.append(vector("line", { x1: this.px(x), x2: this.px(x), y1: this.py(under), y2: this.py(line.y[i] + spread), stroke: line.colour, "stroke-width": 1.2 }));
          }
          if (options.points || line.x.length < 25) inside.append(vector("circle", { cx: this.px(x), cy: this.py(line.y[i]), r: 2.6, fill: line.colour }));
        });
        inside.append(vector("path", { d: path, fill: "none", stroke: line.colour, "stroke-width": line.width || 1.7, "stroke-dasharray": line.dash, "stroke-linejoin": "round", opacity: line.opacity || 1 }));
      }
      if (options.diagonal) inside.append(vector("line", { class: "cross", x1: px(0), y1: py(0), x2: px(1), y2: py(1) }));
      this.marks = vector("g");
      this.svg.replaceChildren(definition, ...parts, inside, this.marks);
      this.svg.setAttribute("aria-label", `${options.title}: ${this.shown.map((line) => {
        const last = line.y.filter((y) => y !== null).at(-1);
        return `${line.name}${last === undefined ? "" : ` ${short(last)} at the end`}`;
      }).join(", ")}`);
      this.box.dataset.from = lowX;
      this.box.dataset.to = highX;
      this.box.dataset.lines = String(this.shown.length);
    }

    listen() {
      const place = (event) => {
        const box = this.svg.getBoundingClientRect();
        return ((event.clientX - box.left) / box.width) * SIZE.width;
      };
      let start = null;
      this.svg.addEventListener("pointerdown", (event) => { start = event.pointerType === "touch" ? null : place(event); });
      this.svg.addEventListener("pointermove", (event) => {
        const at = clamp(place(event), SIZE.left, SIZE.width - SIZE.right);
        this.marks.replaceChildren();
        if (start !== null) {
          const [low, high] = [Math.min(start, at), Math.max(start, at)];
          this.marks.append(vector("rect", { class: "select", x: low, width: high - low, y: SIZE.top, height: SIZE.height - SIZE.top - SIZE.bottom }));
          return;
        }
        this.point(at);
      });
      const done = (event) => {
        if (start === null) return;
        const [low, high] = [start, clamp(place(event), SIZE.left, SIZE.width - SIZE.right)].sort((a, b) => a - b);
        start = null;
        this.marks.replaceChildren();
        if (high - low > 8) this.look([this.inverse(Math.max(low, SIZE.left)), this.inverse(high)]);
      };
      this.svg.addEventListener("pointerup", done);
      this.svg.addEventListener("pointerleave", () => { start = null; this.marks.replaceChildren(); });
      this.svg.addEventListener("dblclick", () => this.look(null));
    }

    point(at) {
      const x = this.inverse(at), said = [];
      let where = null;
      for (const line of this.shown) {
        let best = null;
        line.x.forEach((value, i) => {
          if (line.y[i] !== null && (best === null || Math.abs(this.tx(value) - x) < Math.abs(this.tx(line.x[best]) - x))) best = i;
        });
        if (best === null) continue;
        where = line.x[best];
        const spread = line.spread && line.spread[best] ? ` ± ${short(line.spread[best])}` : "";
        said.push(`${line.name} ${short(line.y[best])}${spread}`);
        this.marks.append(vector("circle", { cx: this.px(line.x[best]), cy: this.py(line.y[best]), r: 3.6, fill: line.colour }));
      }
      if (where === null) return;
      this.marks.append(vector("line", { class: "cross", x1: this.px(where), x2: this.px(where), y1: SIZE.top, y2: SIZE.height - SIZE.bottom }));
      this.readout.textContent = `${this.options.xLabel || "step"} ${short(where)}: ${said.slice(0, 8).join(", ")}`;
    }

    update(series) { this.set(series); }
  }

  function linesOf(columns, steps) {
    return Object.entries(columns).map(([name, values]) => ({ name, x: steps, y: values }));
  }

  const CHARTS = {
    terms: () => {
      const { steps, loss, terms } = figures.curves;
      return [[{ name: "loss", x: steps, y: loss, colour: "#717581", width: 2.4 }, ...linesOf(terms, steps)], { title: "Loss", mayBeLog: true, log: true }];
    },
    rate: () => [linesOf(figures.curves.rate, figures.curves.steps), { title: "Learning rate", from: 0 }],
    momentum: () => [linesOf(figures.curves.momentum, figures.curves.steps), { title: "Momentum" }],
    health: () => [linesOf(figures.curves.health, figures.curves.steps), { title: "Signs of health", from: 0, to: 1 }],
    errors: () => [
      Object.entries(figures.curves.errors).map(([name, line]) => ({ name: `${name} error, %`, x: line.steps, y: line.values })),
      { title: "Error in per cent", from: 0, points: true },
    ],
    reliability: () => {
      const bins = figures.reliability, most = Math.max(...bins.map((bin) => bin.images));
      return [
        [{ name: "right", x: bins.map((bin) => bin.confidence), y: bins.map((bin) => bin.accuracy) }],
        { title: "Share of right answers by confidence", xLabel: "confidence", from: 0, to: 1, diagonal: true, points: true, xTicks: [0, 0.2, 0.4, 0.6, 0.8, 1],
          bars: bins.map((bin) => ({ ...bin, weight: Math.sqrt(bin.images / most) })), fixed: [0, 1] },
      ];
    },
    labels: () => [figures.by_labels, { title: "Test error by number of labels", xLabel: "labels", logX: true, from: 0, points: true, xTicks: figures.label_ticks }],
    overlaid_errors: () => [figures.overlaid.errors, { title: "Error of all runs", from: 0 }],
    overlaid_loss: () => [figures.overlaid.loss, { title: "Loss of all runs", mayBeLog: true, log: true }],
  };

  // ---- Tables, theme, and the page as a whole ------------------------------------------------------------------

  function makeSortable(table) {
    const heads = [...table.querySelectorAll("th")];
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.hasAttribute("aria-sort") && other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0], value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
        const rows = [...body.rows].sort((a, b) => {
          const [first, second] = [value(a), value(b)];
          const numbers = [Number(first), Number(second)];
          const order = numbers.some(Number.isNaN) ? first.localeCompare(second) : numbers[0] - numbers[1];
          return up ? order : -order;
        });
        body.append(...rows);
      });
    });
  }

  const live = new Map(); // figures by where they are, to be updated

  function start(section) {
    section.querySelectorAll("[data-chart]").forEach((box) => {
      const name = box.dataset.chart, [series, options] = CHARTS[name]();
      const chart = new LineChart(box, series, { id: name, ...options });
      if (options.fixed) { chart.range = options.fixed; chart.draw(); }
      live.set(`chart ${name}`, () => chart.update(CHARTS[name]()[0]));
    });
    section.querySelectorAll("[data-matrix]").forEach((stage) => {
      const matrix = new Matrix(stage, stage.dataset.matrix);
      live.set(`matrix ${stage.dataset.matrix}`, () => matrix.update());
    });
    if (section.id === "map") {
      const map = new PointMap(section);
      live.set("map", () => map.update());
    }
    section.querySelectorAll("table.sortable").forEach(makeSortable);
    const search = section.querySelector("#find-gallery");
    if (search) search.addEventListener("input", () => {
      section.querySelectorAll(".class-row").forEach((row) => {
        row.hidden = !row.dataset.name.toLowerCase().includes(search.value.toLowerCase());
      });
    });
    showTiles(section);
  }

  function remembered(value) {
    try {
      if (value !== undefined) localStorage.setItem("manigraph-theme", value);
      return localStorage.getItem("manigraph-theme");
    } catch { return null; }
  }

  function setTheme(theme) {
    if (theme) root.dataset.theme = theme;
    redrawAll();
  }

  document.getElementById("theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const next = isDark ? "light" : "dark";
    remembered(next);
    setTheme(next);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; showTiles(part); }));
  matchMedia("print").addEventListener("change", redrawAll);
  setTheme(remembered());
  document.querySelectorAll("main section").forEach(start);
  root.dataset.ready = "true";

  // ---- While training: the page asks for itself again ----------------------------------------------------------

  const watching = document.querySelector("meta[name=manigraph-watch]");
  let tag = null;

  async function refresh() {
    try {
      const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
      if (answer.status === 200) {
        renew(new DOMParser().parseFromString(await answer.text(), "text/html"));
        tag = answer.headers.get("ETag");
      }
      root.dataset.connection = answer.ok || answer.status === 304 ? "open" : "lost";
    } catch { root.dataset.connection = "lost"; }
    setTimeout(refresh, Number(watching.content) * 1000);
  }

  function renew(page) {
    figures = JSON.parse(page.getElementById("figures").textContent);
    let before = null;
    page.querySelectorAll("main section").forEach((section) => {
      const mine = document.getElementById(section.id);
      if (!mine || (section.querySelector(".pair") && !mine.querySelector(".pair"))) {
        const adopted = document.importNode(section, true);
        if (mine) mine.replaceWith(adopted); else if (before) before.after(adopted); else document.getElementById("main").prepend(adopted);
        start(adopted);
        before = adopted;
        return;
      }
      if (section.hasAttribute("data-live")) mine.replaceChildren(...document.importNode(section, true).childNodes);
      section.querySelectorAll("[data-chart]").forEach((box) => {
        if (mine.querySelector(`[data-chart="${box.dataset.chart}"]`)) return;
        const made = document.importNode(box.parentElement, true), pair = mine.querySelector(".pair");
        if (box.dataset.chart === "errors") pair.prepend(made); else pair.append(made);
        start(made);
      });
      before = mine;
    });
    document.querySelector(".bar nav").replaceChildren(...document.importNode(page.querySelector(".bar nav"), true).childNodes);
    live.forEach((update) => update());
    root.dataset.renewed = String(Number(root.dataset.renewed || 0) + 1);
  }

  if (watching) setTimeout(refresh, Number(watching.content) * 1000);
})();
