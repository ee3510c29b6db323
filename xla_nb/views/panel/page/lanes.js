// Lanes: what a rank's last seconds went into.

import { kinds } from "./words.js";

/** A rank's last seconds as a gradient, which fits any width and theme. */
export function stripes(slots, [from, to]) {
	const stops = [];
	const at = (t) => `${(100 * Math.min(1, Math.max(0, (t - from) / (to - from)))).toFixed(2)}%`;
	let [kind, begun, ended] = [null, from, from];
	const close = () => kind && stops.push(`var(--xn-lane-${kind}) ${at(begun)} ${at(ended)}`);
	for (const [n, [second, parts]] of slots.entries()) {
		let t = second;
		// What is known of the first second ends with it.
		if (slots[n - 1]?.[0] !== t - 1 && slots[n + 1]?.[0] === t + 1) t += 1 - parts.reduce((a, b) => a + b);
		if (t - ended > 0.05) {
			close();
			stops.push(`transparent ${at(ended)} ${at(t)}`);
			[kind, begun, ended] = [null, t, t];
		}
		for (const [i, name] of kinds.entries()) {
			if (!(parts[i] > 0)) continue;
			if (name !== kind) {
				close();
				[kind, begun] = [name, t];
			}
			t += parts[i];
			ended = t;
		}
	}
	close();
	return stops.length ? `linear-gradient(90deg, ${stops.join(", ")}, transparent ${at(ended)})` : "none";
}
