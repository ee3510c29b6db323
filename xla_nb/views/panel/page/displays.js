// What ranks display stands in outputs of its own (views/composed.py), which every update draws anew.
// Their folds stay as the user has left them, in all cells of the page: text views have no script.

const shownBy = (fold) => fold.querySelector(":scope > summary > [data-ranks]")?.dataset.ranks.split(",") ?? [];

export class Displays {
	left = new WeakMap(); // by output: by rank, whether the user has opened its fold

	constructor() {
		this.watch = new MutationObserver((changes) => changes.forEach(({ target }) => restore(target, this.left.get(target))));
		// Not "toggle", which tells of what is drawn open too. It comes before the fold changes.
		this.click = ({ target }) => this.clicked(target.closest("summary")?.parentElement);
		document.addEventListener("click", this.click, true);
	}

	clicked(fold) {
		const output = fold?.closest(".jp-OutputArea-output");
		if (!output || !shownBy(fold).length) return;
		const states = this.left.get(output) ?? new Map();
		for (const rank of shownBy(fold)) states.set(rank, !fold.open);
		this.left.set(output, states);
		this.watch.observe(output, { childList: true });
	}

	close() {
		document.removeEventListener("click", this.click, true);
		this.watch.disconnect();
	}
}

/** Ranks that display the same have one fold: open, if the user has opened that of any. */
function restore(output, states) {
	for (const fold of output.querySelectorAll("details")) {
		const known = shownBy(fold).filter((rank) => states.has(rank));
		if (known.length) fold.open = known.some((rank) => states.get(rank));
	}
}
