// What ranks display stands in outputs of its own (views/rank_outputs.py), which every update draws anew.
// Their folds stay as the user has left them, in all cells of the page: text views have no script.

const PRESSES = ["pointerdown", "click"]; // an output that is drawn anew between the two gets no click

const shownBy = (fold) => fold.querySelector(":scope > summary > [data-ranks]")?.dataset.ranks.split(",") ?? [];

class Displays {
	left = new WeakMap(); // by output: by rank, whether the user has opened its fold

	constructor() {
		this.watch = new MutationObserver((changes) => changes.forEach(({ target }) => restore(target, this.left.get(target))));
		// Not "toggle", which tells of what is drawn open too. It comes before the fold changes.
		this.press = ({ target, button }) => button || this.pressed(target.closest("summary")?.parentElement);
		for (const press of PRESSES) document.addEventListener(press, this.press, true);
	}

	pressed(fold) {
		const output = fold?.closest(".jp-OutputArea-output");
		if (!output || !shownBy(fold).length) return;
		const states = held(this.left, output, () => new Map());
		for (const rank of shownBy(fold)) states.set(rank, !fold.open);
		this.watch.observe(output, { childList: true });
	}

	close() {
		for (const press of PRESSES) document.removeEventListener(press, this.press, true);
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
