/*
 * Where regions and instances are drawn. Pure, and without randomness: the same configured topology gives the same places in every
 * browser. State (who is up, who is slow) is no input, so that the map stays where it is.
 *
 * Two steps. `placeRegions` gives each region a place in the square from -1 to 1; it is what a topology keeps. `arrange` turns these into
 * boxes on a canvas of a given size, on a grid of 8 px.
 */
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from '../vendor/d3-force.js';

export const GRID = 8;
const RING_MAX = 8;
const FORCE_STEPS = 300;
const SLICE = 50;

const snap = (value) => Math.round(value / GRID) * GRID;

/** Pairs of regions with a link between them, as {a, b, count} with indices of regions, a < b. */
function regionPairs(topology) {
  const index = new Map(topology.regions.map((region, i) => [region.name, i]));
  const pairs = new Map();
  for (const link of topology.links) {
    const a = index.get(link.fromRegion);
    const b = index.get(link.toRegion);
    if (a === b) continue;
    const key = Math.min(a, b) * 1e6 + Math.max(a, b);
    const pair = pairs.get(key);
    if (pair) pair.count += 1;
    else pairs.set(key, { a: Math.min(a, b), b: Math.max(a, b), count: 1 });
  }
  return [...pairs.values()];
}

/** The region that every other is linked to while no two others are linked, or null. */
export function hubOf(topology) {
  const n = topology.regions.length;
  if (n < 3) return null;
  const pairs = regionPairs(topology);
  if (pairs.length !== n - 1) return null;
  const degree = new Array(n).fill(0);
  for (const { a, b } of pairs) {
    degree[a] += 1;
    degree[b] += 1;
  }
  const hub = degree.indexOf(n - 1);
  return hub < 0 ? null : topology.regions[hub].name;
}

/** Points of an ellipse: the first on the left or the upper left, then clockwise, the same left and right of the middle. */
function ring(count) {
  if (count === 1) return [{ x: -1, y: 0 }];
  const step = (2 * Math.PI) / count;
  let begin = count >= 4 && count % 2 === 0 ? Math.PI + step / 2 : Math.PI;
  if (count % 2) {
    // One lies in the middle of the bottom; the first is the one on the left nearest to level.
    begin = Math.PI / 2;
    while (begin < (Math.PI * 5) / 6 - 1e-9) begin += step;
  }
  const points = [];
  for (let i = 0; i < count; i += 1) {
    const angle = begin + step * i;
    points.push({ x: fuller(Math.cos(angle)), y: fuller(Math.sin(angle)) });
  }
  return points;
}

/** Makes the ellipse fuller toward the corners of the canvas, which leaves boxes more room. */
const fuller = (value) => Math.sign(value) * Math.abs(value) ** 0.7;

/** Stretches points so that they fill the square from -1 to 1; about zero in a direction in which they do not differ. */
function fill(points) {
  const scale = (key) => {
    const low = Math.min(...points.map((p) => p[key]));
    const high = Math.max(...points.map((p) => p[key]));
    return high - low < 1e-6 ? () => 0 : (value) => ((value - low) / (high - low)) * 2 - 1;
  };
  const x = scale('x');
  const y = scale('y');
  return points.map((p) => ({ x: round(x(p.x)), y: round(y(p.y)) }));
}

// Places are rounded so that a browser's last bit in a cosine cannot move a box by a grid step.
const round = (value) => Math.round(value * 1e4) / 1e4 + 0;

/** A place for one more region among those that keep theirs: the free one farthest from all others, near the middle when equal. */
function freePlace(taken) {
  let best = null;
  for (let row = 0; row <= 8; row += 1) {
    for (let column = 0; column <= 16; column += 1) {
      const x = round(-1 + column / 8);
      const y = round(-1 + row / 4);
      let near = Infinity;
      for (const p of taken) near = Math.min(near, Math.hypot((p.x - x) * 1.6, p.y - y));
      const score = near - Math.hypot(x, y) * 0.01;
      if (!best || score > best.score + 1e-9) best = { x, y, score };
    }
  }
  return { x: best.x, y: best.y };
}

/**
 * Places regions in slices, as a generator: each `next()` is short work, and the last one returns {name: {x, y}}.
 * `kept` are places from before; regions in it stay, new ones are fitted in.
 */
export function* placingRegions(topology, kept = null) {
  const { regions } = topology;
  const places = {};
  const known = kept ? regions.filter((region) => kept[region.name]) : [];
  if (known.length) {
    const taken = known.map((region) => (places[region.name] = kept[region.name]));
    for (const region of regions) {
      if (places[region.name]) continue;
      places[region.name] = freePlace(taken);
      taken.push(places[region.name]);
    }
    return places;
  }
  if (regions.length <= 1) {
    for (const region of regions) places[region.name] = { x: 0, y: 0 };
    return places;
  }
  const hub = hubOf(topology);
  const around = regions.filter((region) => region.name !== hub);
  let points = ring(around.length);
  if (around.length > RING_MAX) {
    const ordered = hub === null ? around : [...around, regions.find((region) => region.name === hub)];
    const start = hub === null ? points : [...points, { x: 0, y: 0 }];
    const index = new Map(ordered.map((region, i) => [region.name, i]));
    const radius = (region) => 16 + 9 * Math.sqrt(region.instances.length);
    const spread = 26 * ordered.length;
    const nodes = ordered.map((region, i) => ({ x: start[i].x * spread * 1.5, y: start[i].y * spread, r: radius(region) }));
    if (hub !== null) Object.assign(nodes[nodes.length - 1], { fx: 0, fy: 0 });
    const edges = regionPairs(topology).map(({ a, b, count }) => ({ source: index.get(regions[a].name), target: index.get(regions[b].name), count }));
    // The constant stands for d3's random source, which it only asks where two nodes coincide.
    const simulation = forceSimulation(nodes)
      .randomSource(() => 0.25)
      .stop()
      .force('links', forceLink(edges).distance(140).strength((edge) => Math.min(0.3, (0.02 + 0.02 * Math.log1p(edge.count)) / Math.sqrt(ordered.length))))
      .force('apart', forceManyBody().strength(-900))
      .force('boxes', forceCollide((node) => node.r * 2.2).strength(1))
      .force('x', forceX(0).strength(0.03))
      .force('y', forceY(0).strength(0.06));
    for (let step = 0; step < FORCE_STEPS; step += SLICE) {
      simulation.tick(SLICE);
      yield;
    }
    points = fill(nodes);
    ordered.forEach((region, i) => (places[region.name] = points[i]));
    return places;
  }
  points = fill(points);
  around.forEach((region, i) => (places[region.name] = points[i]));
  if (hub !== null) places[hub] = { x: 0, y: 0 };
  return places;
}

/** All of `placingRegions` at once. */
export function placeRegions(topology, kept = null) {
  const placing = placingRegions(topology, kept);
  for (;;) {
    const { value, done } = placing.next();
    if (done) return value;
  }
}

/* Sizes of one instance and of the gaps between two, by detail; gaps hold the cards of the links between neighbours. */
export const SIZES = {
  full: { width: 256, height: 164, gapX: 184, gapY: 80, pad: 16, head: 36 },
  boxes: { width: 184, height: 64, gapX: 152, gapY: 64, pad: 12, head: 32 },
  names: { width: 148, height: 28, gapX: 4, gapY: 4, pad: 8, head: 32 },
  cells: { width: 28, height: 28, gapX: 4, gapY: 4, pad: 8, head: 48 },
};

const IN_LINE_MAX = 2;

/** The shape of a region's grid: columns, rows, and whether its instances stand in one line with room for links between them. */
export function gridOf(count, place, detail, bundled) {
  if (detail === 'full' || detail === 'boxes') {
    if (count <= IN_LINE_MAX && !bundled) {
      const column = Math.abs(place.x) >= Math.abs(place.y);
      return { columns: column ? 1 : count, rows: column ? count : 1, line: column ? 'column' : 'row' };
    }
    const columns = Math.ceil(count / 4);
    return { columns, rows: Math.ceil(count / columns), line: '' };
  }
  if (detail === 'names') {
    const columns = Math.ceil(count / 5);
    return { columns, rows: Math.ceil(count / columns), line: '' };
  }
  const columns = Math.max(5, Math.ceil(Math.sqrt(count * 2)));
  return { columns, rows: Math.ceil(count / columns), line: '' };
}

/** The box of one region around its instances, and the instances' boxes relative to its middle. */
export function regionBox(region, place, detail, bundled) {
  const size = SIZES[detail];
  const grid = gridOf(region.instances.length, place, detail, bundled);
  const gapX = grid.line || detail === 'names' || detail === 'cells' ? size.gapX : 12;
  const gapY = grid.line || detail === 'names' || detail === 'cells' ? size.gapY : 12;
  const innerW = grid.columns * size.width + (grid.columns - 1) * gapX;
  const innerH = grid.rows * size.height + (grid.rows - 1) * gapY;
  // Where links inside have no lines, the frame's second line sums them up.
  const head = !grid.line && region.instances.length > 1 ? Math.max(size.head, 48) : size.head;
  // Multiples of 16, so that edges lie on the grid of 8 px wherever the middle does.
  const width = Math.ceil((innerW + 2 * size.pad) / 16) * 16;
  const height = Math.ceil((innerH + head + size.pad) / 16) * 16;
  const instances = region.instances.map((name, i) => {
    const column = i % grid.columns;
    const row = Math.floor(i / grid.columns);
    return {
      name,
      x: Math.round(-innerW / 2 + column * (size.width + gapX)),
      y: Math.round(-height / 2 + head + row * (size.height + gapY)),
      width: size.width,
      height: size.height,
    };
  });
  return { name: region.name, width, height, head, line: grid.line, columns: grid.columns, rows: grid.rows, instances };
}

function overlap(a, b, gapX, gapY) {
  return Math.abs(a.cx - b.cx) < (a.width + b.width) / 2 + gapX && Math.abs(a.cy - b.cy) < (a.height + b.height) / 2 + gapY;
}

/** Pushes boxes apart along the shorter way, within the world; deterministic, true when none overlaps. */
function separate(boxes, world, gapX, gapY) {
  for (let round = 0; round < 80; round += 1) {
    let clean = true;
    for (let i = 0; i < boxes.length; i += 1) {
      for (let j = i + 1; j < boxes.length; j += 1) {
        const a = boxes[i];
        const b = boxes[j];
        if (!overlap(a, b, gapX, gapY)) continue;
        clean = false;
        const dx = (a.width + b.width) / 2 + gapX - Math.abs(a.cx - b.cx);
        const dy = (a.height + b.height) / 2 + gapY - Math.abs(a.cy - b.cy);
        if (dx * 0.6 < dy) {
          const way = (a.cx <= b.cx ? 1 : -1) * (Math.floor(dx / 2 / GRID) + 1) * GRID;
          a.cx -= way;
          b.cx += way;
        } else {
          const way = (a.cy <= b.cy ? 1 : -1) * (Math.floor(dy / 2 / GRID) + 1) * GRID;
          a.cy -= way;
          b.cy += way;
        }
      }
    }
    for (const box of boxes) clamp(box, world);
    if (clean) return true;
  }
  return false;
}

function clamp(box, world) {
  const edge = 16;
  box.cx = snap(Math.min(Math.max(box.cx, edge + box.width / 2), world.width - edge - box.width / 2));
  box.cy = snap(Math.min(Math.max(box.cy, edge + box.height / 2), world.height - edge - box.height / 2));
}

/* Least free room between two regions: that of the cards of the links between them. */
const ROOM = {
  full: { x: 152, y: 96 },
  boxes: { x: 176, y: 72 },
  names: { x: 64, y: 48 },
  cells: { x: 40, y: 32 },
};

/** Height of the canvas for its width: what the detail needs, never more than a screen holds. */
export function canvasHeight(topology, places, width) {
  const level = topology.regions.every((region) => Math.abs(places[region.name].y) < 0.01);
  if (level) {
    const heights = topology.regions.map((region) => regionBox(region, places[region.name], topology.detail, topology.bundled).height);
    return Math.min(640, snap(Math.max(...heights) + 112));
  }
  const least = { full: 560, boxes: 560, names: 640, cells: 640 }[topology.detail];
  return Math.max(least, Math.min(720, snap(width * 0.46)));
}

/**
 * Boxes of all regions and instances on a canvas of this size, in px, on the grid.
 * The world is larger than the canvas where the boxes need it; the page then begins with all of it in view.
 */
export function arrange(topology, places, canvas) {
  const { detail, bundled } = topology;
  const room = ROOM[detail];
  const shapes = topology.regions.map((region) => regionBox(region, places[region.name], detail, bundled));
  const halfW = Math.max(...shapes.map((shape) => shape.width)) / 2;
  const halfH = Math.max(...shapes.map((shape) => shape.height)) / 2;
  const least = { width: halfW * 2 + 48, height: halfH * 2 + 48 };
  let boxes = [];
  let world = null;
  for (const factor of [1, 1.12, 1.25, 1.4, 1.6, 1.8, 2, 2.4, 2.8, 3.4, 4, 5, 6, 8]) {
    world = {
      width: Math.ceil(Math.max(canvas.width * factor, least.width) / 16) * 16,
      height: Math.ceil(Math.max(canvas.height * factor, least.height) / 16) * 16,
    };
    boxes = shapes.map((shape) => {
      const place = places[shape.name];
      const reach = { x: (world.width - shape.width) / 2 - 24, y: (world.height - shape.height) / 2 - 24 };
      const box = { ...shape, cx: world.width / 2 + place.x * reach.x, cy: world.height / 2 + place.y * reach.y };
      clamp(box, world);
      return box;
    });
    const clean = !boxes.some((a, i) => boxes.some((b, j) => j > i && overlap(a, b, room.x, room.y)));
    if (clean || separate(boxes, world, room.x, room.y)) break;
  }
  const regions = new Map();
  const instances = new Map();
  for (const box of boxes) {
    const region = {
      name: box.name, x: box.cx - box.width / 2, y: box.cy - box.height / 2, width: box.width, height: box.height,
      cx: box.cx, cy: box.cy, head: box.head, line: box.line, columns: box.columns, rows: box.rows, instances: [],
    };
    for (const inner of box.instances) {
      const placed = { ...inner, x: box.cx + inner.x, y: box.cy + inner.y, region: box.name };
      placed.cx = placed.x + placed.width / 2;
      placed.cy = placed.y + placed.height / 2;
      region.instances.push(placed);
      instances.set(inner.name, placed);
    }
    regions.set(box.name, region);
  }
  return { detail, bundled, world, regions, instances };
}
