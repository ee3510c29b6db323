// Lanes: what a rank's last seconds went into.

import { kinds } from "./words.js";

/** The bars of a rank's last seconds, a path for each kind: what a second went into is stacked, since
 * nobody knows its order. What is known of the first one ends with it, of the newest one begins with it. */
export function stacks(slots, [from]) {
	const paths = kinds.map(() => "");
	for (const [n, [second, parts]] of slots.entries()) {
		const known = Math.min(1, parts.reduce((a, b) => a + b));
		const [starts, goesOn] = [slots[n - 1]?.[0] !== second - 1, slots[n + 1]?.[0] === second + 1];
		const wide = starts || !goesOn ? known : 1;
		const left = second - from + (starts && goesOn ? 1 - known : 0);
		let top = 1;
		for (const [i, part] of parts.entries()) {
			if (!(part > 0)) continue;
			const high = Math.min(top, part / wide);
			top -= high;
			paths[i] += `M${left.toFixed(2)} ${top.toFixed(3)}h${wide.toFixed(2)}v${high.toFixed(3)}h${-wide.toFixed(2)}z`;
		}
	}
	return paths;
}
