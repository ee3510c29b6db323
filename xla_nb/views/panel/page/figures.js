// All charts, and the choices of how they are drawn.

import { held } from "./values.js";
import { button, div, fill, h, mark, option, section, show, span } from "./nodes.js";
import { folding } from "./folding.js";
import { Chart } from "./chart.js";

export class Figures {
	charts = new Map();
	grid = div("figures-grid");
	queue = []; // charts to draw, one in each frame

	constructor(view) {
		this.view = view;
		const { charting } = view;
		const redraw = () => view.redraw("figures");
		const choice = (text, key, title) => {
			const flip = ({ currentTarget }) => {
				charting[key] = !charting[key];
				mark(currentTarget, "aria-pressed", charting[key]);
				redraw();
			};
			return button(text, flip, { "aria-pressed": false, title }, "choice");
		};
		const smooth = h("select.select", { label: "Smoothing", change: () => ((charting.smooth = Number(smooth.value)), redraw()) },
			...[[0, "not smoothed"], [0.6, "smoothed"], [0.9, "very smooth"]].map(option));
		const choices = h("span.choices", { role: "group", label: "Charts" },
			choice("log", "log", "Logarithmic axis"),
			choice("time", "time", "Seconds instead of steps"),
			choice("each rank", "each", "A line for each rank"),
			choice("memory", "memory", "Memory of each process"));
		const head = div("bar-head", span("space"), choices, smooth);
		this.node = folding(section("figures", "Figures", head, this.grid), "figures", "Figures", head);
		this.resized = new ResizeObserver(redraw);
		this.resized.observe(this.grid);
	}

	get every() {
		return this.view.store.cards.size > 32 ? 500 : 150;
	}

	draw() {
		const { figures, memory } = this.view.store;
		const all = new Map([...figures].map(([name, lines]) => [`figure ${name}`, [name, lines]]));
		if (this.view.charting.memory) all.set("memory", ["memory, MiB", memory]);
		show(this.node, all.size || memory.size);
		mark(this.node, "data-empty", !figures.size);
		const keys = [...all.keys()];
		const chart = (key) => held(this.charts, key, () => new Chart(this.view, all.get(key)[0]));
		fill(this.grid, JSON.stringify(keys), () => keys.map((key) => chart(key).node));
		if (!this.queue.length) this.queue = keys;
		const key = this.queue.shift();
		if (all.has(key)) chart(key).draw(all.get(key)[1]);
		return this.queue.length > 0;
	}
}
