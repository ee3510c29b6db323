// The charts of figures, which uPlot draws: a line of each rank, or of many their mean in a band.


const HIGH = 96; // of a chart, in pixels
const [PAIR, EACH] = [2, 64]; // so many ranks have a line each unasked, and on request
const LABELS = 8; // ends of lines that have room for a number
const BAND = ["high", "low", "mean"];
const SCALE = Array.from({ length: 1800 }, (_, k) => Number(`${[1, 2, 5][k % 3]}e${Math.floor(k / 3) - 300}`)); // distances of values
const WHOLE = SCALE.filter(Number.isInteger); // and of steps
const isFigure = (y) => typeof y === "number";

/** A running mean, debiased as in TensorBoard. */
function smoothed(values, weight) {
	let [sum, scale] = [0, 0];
	return values.map((value) => {
		if (!isFinite(value)) return value;
		sum = weight * sum + (1 - weight) * value;
		scale = weight * scale + (1 - weight);
		return sum / scale;
	});
}

/** Up to where those in progress have reported. */
function reached(lines, x0, x1, runs) {
	const far = x0 + (lines.some(({ x }) => x.length > 50) && 0.8 * (x1 - x0));
	return Math.min(x1, ...lines.filter(({ rank, x }) => runs(rank) && x.at(-1) >= far).map(({ x }) => x.at(-1)));
}

/** The x of lines between two ends, and these; of more than `most` so many evenly spaced ones. */
function places(lines, [from, to], most, whole) {
	const found = new Set([from, to]);
	for (const { x } of lines) if (found.size <= most) x.forEach((at) => at > from && at < to && found.add(at));
	const even = (_, k) => from + (k / most) * (to - from);
	const all = found.size > most ? Array.from({ length: most + 1 }, even) : [...found];
	return [...new Set(whole ? all.map(Math.round) : all)].sort((a, b) => a - b);
}

/** A line's values at these places, on straight lines between its points; `drawn` is what is shown of one. */
function along({ x, y }, places, drawn) {
	let i = 0;
	return places.map((at) => {
		while (x[i + 1] <= at) i++;
		if (at < x[0] - 1e-9 || at > x.at(-1) + 1e-9) return null;
		const part = i < x.length - 1 && (at - x[i]) / (x[i + 1] - x[i]);
		return drawn(y[i] + (part && part * (y[i + 1] - y[i])));
	});
}

/** Of all lines' values at places up to `end`: x, the highest, the lowest and their mean, with a gap where
 * others have one than before. `more` is a line's own values, if any. */
function spread(places, columns, end, more = []) {
	const rows = places.flatMap((at, k) => {
		const found = at <= end ? columns.map((ys) => ys[k]).filter(isFigure) : [];
		const mean = found.reduce((a, b) => a + b, 0) / found.length;
		const row = found.length ? [at, Math.max(...found), Math.min(...found), mean, more[k]] : [at, null, null, null, more[k]];
		const others = k && columns.some((ys) => isFigure(ys[k]) !== isFigure(ys[k - 1]));
		return others ? [[(places[k - 1] + at) / 2, null, null, null], row] : [row];
	});
	return rows[0].map((_, n) => rows.map((row) => row[n]));
}

/** The index of the x that is nearest, the last of equal ones. */
function nearest(xs, x) {
	const i = xs.findLastIndex((at) => at <= x);
	return i < 0 || xs[i + 1] - x < x - xs[i] ? i + 1 : i;
}

/** The points of a line that have none beside them to be joined to. */
function lone({ data }, series) {
	const ys = data[series];
	const none = (i) => !(i in ys) || ys[i] === null;
	return [...ys.keys()].filter((i) => isFigure(ys[i]) && none(i - 1) && none(i + 1));
}

/** Powers of ten on a logarithmic axis, on a short one numbers between them too, or its ends and its middle. */
function powers(low, high) {
	const [first, last] = [low, high].map((end) => Math.floor(Math.log10(end)));
	const apart = Math.ceil((last - first) / 5) || 1;
	for (const parts of [[1], [1, 3], [1, 2, 5]]) {
		const found = [];
		for (let k = first; k <= last; k += apart) found.push(...parts.map((part) => Number(`${part}e${k}`)));
		const within = found.filter((value) => value >= low && value <= high);
		if (within.length > 2) return within;
	}
	return [low, (low + high) / 2, high];
}

/** The words of numbers on an axis, with as many digits as tell one from the next. */
function told(values) {
	const short = values.map(figure);
	return new Set(short).size === short.length ? short : values.map((value) => `${Number(value.toPrecision(10))}`);
}

const ofRank = ([rank, value]) => [rank, `rank ${rank}`, figure(value)];

class Chart {
	at = span("quiet.at");
	legend = div("legend");
	ends = div("ends");
	zoom = {}; // the part of the x axis that is shown, by whether it is of seconds

	constructor(view, name, timed = false) {
		this.view = view;
		this.timed = timed;
		this.name = name;
		const keydown = (event) => {
			const by = { ArrowLeft: -8, ArrowRight: 8 }[event.key];
			if (!by || !this.uplot) return;
			event.preventDefault();
			const [{ left }, wide] = [this.uplot.cursor, this.uplot.over.clientWidth];
			this.point(Math.max(0, Math.min((left < 0 ? wide : left) + by, wide)));
		};
		this.plot = h("div.plot", { role: "img", keydown, blur: () => this.point(-10) });
		const caption = h("figcaption.caption", {}, h("strong", {}, this.name));
		this.node = h("figure.figure", { "data-figure": name }, caption, this.plot, this.legend);
	}

	/** Whether x is seconds since the start of the run, rather than steps. */
	get overTime() {
		return this.timed || this.view.charting.time;
	}

	point(left) {
		this.uplot?.setCursor({ left, top: 0 });
	}

	/** Shows a part of the x axis, or all of it. */
	show(ends = null) {
		this.zoom[this.overTime] = ends;
		this.view.changed("figures");
	}

	draw(figures) {
		const width = this.plot.clientWidth;
		if (!width) return;
		const { rank, store, charting: { log, each, smooth } } = this.view;
		const lines = (this.lines = this.prepared(figures, smooth));
		if (!lines.length) return;
		const [x0, x1] = [Math.min(...lines.map(({ x }) => x[0])), Math.max(...lines.map(({ x }) => x.at(-1)))];
		const shown = this.zoom[this.overTime] ?? (x0 < x1 ? [x0, x1] : [x0 - 0.5, x0 + 0.5]);
		const many = lines.length > (each ? EACH : PAIR);
		this.summed = many || lines.length > LABELS; // so that the legend says what they have together
		this.end = this.summed ? reached(lines, x0, x1, (one) => !OVER.has(store.cards.get(one)?.phase)) : x1;
		const whole = !this.overTime && lines.every(({ x }) => x.every(Number.isInteger));
		const xs = places(lines, shown, many ? 300 : this.summed ? 1000 : 4000, whole);
		this.hides = log && lines.some(({ y }) => y.some((value) => value <= 0)); // a logarithmic axis has no place for some
		const drawn = (y) => (isFinite(y) && !(log && y <= 0) ? y : null);
		const columns = lines.map((line) => along(line, xs, drawn));
		const named = lines.map((line) => line.rank).filter((one) => !many || one === rank);
		this.names = many ? [...BAND, ...named] : named;
		const own = columns[lines.findIndex((line) => line.rank === rank)];
		fill(this.plot, JSON.stringify([this.names, rank, log, whole]), () => [this.renewed(width, whole).root]);
		this.uplot.batch((uplot) => {
			if (uplot.width !== width) uplot.setSize({ width, height: HIGH });
			uplot.setData(many ? spread(xs, columns, this.end, own) : [xs, ...columns], false);
			uplot.setScale("x", { min: shown[0], max: shown[1] });
		});
		this.annotate();
		this.read();
	}

	/** Lines in the order of ranks and of x. `y` is drawn, `values` are told. */
	prepared(figures, smooth) {
		const inOrder = (own, x) => (x.some((at, i) => at < x[i - 1]) ? [...x.keys()].sort((a, b) => x[a] - x[b]).map((i) => own[i]) : own);
		return [...figures].filter(([, { x }]) => x.length).sort(([a], [b]) => a - b).map(([rank, line]) => {
			const x = this.overTime ? line.t : line.x;
			const values = inOrder(line.y, x);
			return { rank, x: inOrder(x, x), values, y: smooth ? smoothed(values, smooth) : values };
		});
	}

	/** Another plot, in place of one with other lines or axes. */
	renewed(width, whole) {
		this.uplot?.destroy();
		this.style = getComputedStyle(this.plot);
		const { rank, store, charting: { log } } = this.view;
		const axis = { stroke: this.ink("quiet"), font: `12px ${this.style.fontFamily}`, gap: 4, ticks: { show: false } };
		const room = (texts) => 8 + 7.5 * Math.max(4, ...(texts ?? []).map(({ length }) => length));
		const across = {
			...{ size: 18, space: (_, axis, low, high) => 4 + room([figure(high)]), incrs: whole ? WHOLE : null, grid: { show: false } },
			values: (_, all) => told(all).map((text) => text + (this.overTime ? " s" : "")),
		};
		const up = {
			...{ size: (_, texts) => room(texts), space: 12, incrs: SCALE, grid: { stroke: this.ink("tint2"), width: 1 } }, // three or more
			values: (_, all) => told(all).map((text, i) => (i % 2 && all.length > 5 ? "" : text)),
			...(log && { splits: (_, axis, low, high) => powers(low, high), filter: (_, all) => all }),
		};
		const pale = (name) => name !== rank && this.names.includes(rank) && (isFigure(name) || name === "mean");
		const line = (name) => ({ stroke: this.ink(name), width: name === rank ? 2.2 : 1.4, alpha: pale(name) ? 0.35 : 1, pxAlign: 0, points: { filter: lone, size: 4, width: 0 } });
		const range = (_, low, high) => {
			if (low === null) return [null, null];
			const more = low < high ? (high / low) ** 0.06 : 2;
			if (log) return [low / more, high * more];
			return low || high ? store.uPlot.rangeNum(low, high, 0.1, true) : [0, 1];
		};
		this.uplot = new store.uPlot({
			...{ width, height: HIGH, padding: [6, 22, 0, 0], legend: { show: false } },
			scales: { x: { time: false }, y: { distr: log ? 3 : 1, range } },
			axes: [across, up].map((one) => ({ ...axis, ...one })),
			series: [{}, ...this.names.map(line)],
			bands: this.names[0] === BAND[0] ? [{ series: [1, 2], fill: this.ink("band") }] : [],
			cursor: { y: false, points: { show: false }, drag: { setScale: false, dist: 5 }, bind: { dblclick: () => () => this.show() } },
			hooks: { setCursor: [() => this.read()], setSelect: [({ select }) => this.select(select)] },
		}, [[]]);
		this.uplot.over.append(this.ends);
		return this.uplot;
	}

	/** The color of a rank, or one of the style sheet, as it is when it is asked for. */
	ink(name) {
		const of = (what) => this.style.getPropertyValue(`--xn-${what}`);
		return () => (isFigure(name) ? `oklch(${of("lightness")} ${of("chroma")} ${hue(name)})` : of(name));
	}

	select({ left, width }) {
		if (!width) return;
		this.show([left, left + width].map((end) => this.uplot.posToVal(end, "x")));
		this.uplot.setSelect({ left: 0, width: 0 }, false);
	}

	/** Marks where lines became no finite number, and says at their ends whose they are: color alone does not
	 * tell lines apart. */
	annotate() {
		const { data, under, over, valToPos } = this.uplot;
		const odd = this.lines.flatMap(({ x, values }) => x.filter((_, i) => !isFinite(values[i]) && isFinite(values[i - 1] ?? 0)));
		const at = new Set(odd.map((x) => Math.round(valToPos(x, "x"))));
		under.replaceChildren(...[...at].map((left) => h("i.odd", { style: `left: ${left}px` })));
		const ends = this.names.flatMap((rank, n) => {
			const ys = data[n + 1];
			const i = isFigure(rank) ? ys.findLastIndex(isFigure) : -1;
			return i < 0 ? [] : [{ rank, left: valToPos(data[0][i], "x"), top: valToPos(ys[i], "y") }];
		});
		if (ends.length > LABELS) ends.length = 0;
		let below = -10;
		const numbers = ends.sort((a, b) => a.top - b.top).map(({ rank, left, top }, i) => {
			below = Math.min(Math.max(top, below + 10), over.clientHeight + 14 - 10 * (ends.length - i));
			return tint(h("span.end", { style: `left: ${left}px; top: ${below}px` }, rank), rank);
		});
		this.ends.replaceChildren(...numbers);
	}

	/** The legend: the values under the pointer, or the last ones; of many, those that the mean there is of. */
	read() {
		const { left } = this.uplot.cursor;
		const x = left >= 0 ? this.uplot.posToVal(left, "x") : null;
		const [values, ended] = [new Map(), new Set()];
		let at = null;
		for (const { rank, x: xs, values: ys } of this.lines) {
			if (xs.at(-1) < Math.min(x ?? this.end, this.end) - 1e-6) ended.add(rank);
			const i = nearest(xs, x ?? this.end);
			values.set(rank, ys[i]);
			if (x !== null && (at === null || Math.abs(xs[i] - x) < Math.abs(at - x))) at = xs[i];
		}
		const notes = [this.hides && "without values ≤ 0", this.view.charting.smooth && "smoothed", this.zoom[this.overTime] && "zoomed"];
		at ??= this.summed ? this.end : null;
		put(this.at, joined(...notes, at === null ? "last" : this.overTime ? `at ${duration(at)}` : `step ${figure(at)}`));
		const own = this.lines.find(({ rank }) => rank === this.view.rank);
		const chosen = own && [own.rank, x === null ? own.values.at(-1) : values.get(own.rank)];
		const rows = this.summed ? this.summary(values, ended, chosen) : [...values].map(ofRank);
		mark(this.plot, "aria-label", `${this.name}: ${rows.map(([, ...words]) => words.join(" ")).join(", ")}`);
		const told = ([key, name, value]) => {
			const label = isFigure(key) ? tint(span("one", name), key) : span("quiet", name);
			return h("span", { "data-legend": key }, label, h("b", {}, value));
		};
		fill(this.legend, String(rows), () => [this.at, ...rows.map(told)]);
	}

	/** Rows of the legend for many ranks. */
	summary(values, ended, chosen) {
		const [odd, known] = [true, false].map((odd) => [...values].filter(([, value]) => isFinite(value) !== odd));
		const sorted = known.filter(([rank]) => !ended.has(rank)).sort(([, a], [, b]) => a - b);
		const rows = chosen ? [ofRank(chosen)] : [];
		if (sorted.length) {
			const of = sorted.length < values.size ? `mean of ${plural(sorted.length, "rank")}` : "mean";
			rows.push(["mean", of, figure(sorted.reduce((sum, [, value]) => sum + value, 0) / sorted.length)]);
			const [low, high] = [sorted[0], sorted.at(-1)];
			const end = (name, [rank, value]) => [name, name, `${figure(value)} (rank ${rank})`];
			if (figure(low[1]) !== figure(high[1])) rows.push(end("min", low), end("max", high));
		}
		return odd.length ? [...rows, ["odd", "not finite", ranksOf(odd.map(([rank]) => rank))]] : rows;
	}
}

class Figures {
	charts = new Map();
	grid = div("figures-grid");
	plots = [];
	queue = []; // charts to draw, one in each frame

	constructor(view) {
		this.view = view;
		const { charting } = view;
		const redraw = () => view.changed("figures");
		const choice = (text, key, title) => {
			const flip = ({ currentTarget }) => {
				charting[key] = !charting[key];
				mark(currentTarget, "aria-pressed", charting[key]);
				redraw();
			};
			return button(text, flip, { "aria-pressed": false, title }, "choice");
		};
		this.each = choice("each rank", "each", "A line for each rank");
		this.own = [choice("log", "log", "Logarithmic axis"), choice("time", "time", "Seconds instead of steps"), this.each];
		this.memory = choice("memory", "memory", "Memory of each process");
		this.buttons = [...this.own, this.memory];
		this.smooth = h("select.select", { label: "Smoothing", change: () => ((charting.smooth = Number(this.smooth.value)), redraw()) },
			...[[0, "not smoothed"], [0.6, "smoothed"], [0.9, "very smooth"]].map(option));
		const head = div("bar-head", span("space"), toolbar("Charts", ...this.buttons), this.smooth);
		this.node = folding(section("figures", "Figures", head, this.grid), "figures", "Figures", head);
		this.resized = new ResizeObserver(redraw);
		this.resized.observe(this.grid);
		this.shaded = new MutationObserver(redraw); // dark or light
		this.shaded.observe(view.root, { attributeFilter: ["data-dark"] });
		this.grid.addEventListener("focusin", () => oneStop(this.plots));
		this.grid.addEventListener("keydown", walk(() => this.plots, "ArrowUp", "ArrowDown"));
	}

	draw() {
		const { figures, memory, uPlot } = this.view.store;
		if (!uPlot) return figures.size > 0; // until it is loaded
		const all = new Map([...figures].map(([name, lines]) => [`figure ${name}`, [name, lines]]));
		if (this.view.charting.memory && memory.size) all.set("memory", ["memory, MiB", memory]);
		show(this.node, all.size || memory.size);
		// Without any figure there is only the memory to be charted.
		for (const node of [...this.own, this.smooth]) show(node, figures.size);
		show(this.each, [...figures.values()].some(({ size }) => size > PAIR && size <= EACH));
		show(this.memory, memory.size);
		oneStop(this.buttons);
		mark(this.node, "data-empty", all.size ? null : true);
		const keys = [...all.keys()];
		const chart = (key) => held(this.charts, key, () => new Chart(this.view, all.get(key)[0], key === "memory"));
		fill(this.grid, JSON.stringify(keys), () => {
			this.plots = keys.map((key) => chart(key).plot);
			oneStop(this.plots);
			return keys.map((key) => chart(key).node);
		});
		if (!this.queue.length) this.queue = keys;
		const key = this.queue.shift();
		if (all.has(key)) chart(key).draw(all.get(key)[1]);
		return this.queue.length > 0;
	}

	close() {
		this.resized.disconnect();
		this.shaded.disconnect();
		for (const { uplot } of this.charts.values()) uplot?.destroy();
	}
}
