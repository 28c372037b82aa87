/*
 * Prepares what the graph draws from a topology and a width, in short slices, and keeps the places of regions for their topology.
 */
import { arrange, canvasHeight, placingRegions } from './layout.js';
import { linesOf, placeCards, routeLines } from './routes.js';

const KEPT_KEY = 'raylay.graph.';
const KEPT_MAX = 12;

/** Resolves in a task of its own: work before and after it are two tasks, and events come in between. */
export function nextTask() {
  return new Promise((resolve) => {
    const channel = new MessageChannel();
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(0);
  });
}

function readKept(fabric) {
  try {
    const kept = JSON.parse(localStorage.getItem(KEPT_KEY + fabric));
    return Array.isArray(kept) ? kept.filter((one) => one && typeof one.places === 'object') : [];
  } catch {
    return []; // No storage, or a text that another program wrote there: places are made anew, and are the same.
  }
}

function writeKept(fabric, kept) {
  try {
    localStorage.setItem(KEPT_KEY + fabric, JSON.stringify(kept.slice(0, KEPT_MAX)));
  } catch {
    // A full or forbidden storage costs only the memory of places.
  }
}

const isPlace = (place) => place && Number.isFinite(place.x) && Number.isFinite(place.y) && Math.abs(place.x) <= 1 && Math.abs(place.y) <= 1;

/** The places kept for these regions, or for the most of them that grew by few; null where there are none. */
export function keptPlaces(kept, names) {
  const wanted = new Set(names);
  for (const one of kept) {
    const known = Object.keys(one.places).filter((name) => wanted.has(name) && isPlace(one.places[name]));
    if (known.length === names.length && Object.keys(one.places).length === names.length) return one.places;
  }
  for (const one of kept) {
    const old = Object.keys(one.places);
    const known = old.filter((name) => wanted.has(name) && isPlace(one.places[name]));
    const added = names.length - known.length;
    if (known.length >= 2 && known.length >= old.length - 1 && added <= Math.max(1, Math.floor(known.length / 3))) {
      return Object.fromEntries(known.map((name) => [name, one.places[name]]));
    }
  }
  return null;
}

/**
 * Everything with a place: {layout, lines, routes, cards, inside, singles, width, height}.
 * `isCurrent` tells whether the result is still wanted; null is returned where it is not.
 */
export async function prepareScene(topology, width, isCurrent) {
  const kept = readKept(topology.fabric);
  const names = topology.regions.map((region) => region.name);
  const placing = placingRegions(topology, keptPlaces(kept, names));
  let step = placing.next();
  while (!step.done) {
    await nextTask();
    if (!isCurrent()) return null;
    step = placing.next();
  }
  const places = step.value;
  const others = kept.filter((one) => Object.keys(one.places).sort().join('\n') !== [...names].sort().join('\n'));
  writeKept(topology.fabric, [{ places }, ...others]);
  const canvas = { width, height: canvasHeight(topology, places, width) };
  const layout = arrange(topology, places, canvas);
  const { lines, inside } = linesOf(topology, layout);
  const routes = routeLines(lines, layout);
  if (lines.length > 40) {
    await nextTask();
    if (!isCurrent()) return null;
  }
  const cards = placeCards(lines, routes, layout);
  return { topology, layout, lines, inside, routes, cards, width, height: canvas.height };
}
