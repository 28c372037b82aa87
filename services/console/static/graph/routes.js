/*
 * The lines of the graph: which links share a line, where it leaves and enters a box, its curve, and the place of its card.
 * Pure, from the topology and its places alone: like the boxes, no line or card moves with the state.
 */

/** Reserved places of cards by detail; a card is never larger. */
export const CARDS = {
  full: { width: 196, height: 40 },
  boxes: { width: 148, height: 36 },
  names: { width: 132, height: 20 },
  cells: { width: 92, height: 20 },
};
const PORT_GAP = { full: 44, boxes: 24, names: 22, cells: 12 };

const NORMALS = { left: { x: -1, y: 0 }, right: { x: 1, y: 0 }, top: { x: 0, y: -1 }, bottom: { x: 0, y: 1 } };

/** The lines between regions, and the ids of the links inside each region that have no line of their own. */
export function linesOf(topology, layout, all = false) {
  const lines = new Map();
  const inside = new Map(topology.regions.map((region) => [region.name, []]));
  for (const link of topology.links) {
    if (link.fromRegion === link.toRegion) {
      const region = layout.regions.get(link.fromRegion);
      if ((region.line || all) && link.to.length) {
        lines.set(link.id, { key: link.id, links: [link.id], type: link.type, from: link.from, to: link.to[0], fromRegion: link.fromRegion, toRegion: link.toRegion, within: region.line !== '', single: region.line === '' });
      } else inside.get(link.fromRegion).push(link.id);
    } else if (topology.bundled && !all) {
      const key = `${link.fromRegion}>${link.toRegion}/${link.type}`;
      const line = lines.get(key);
      if (line) line.links.push(link.id);
      else lines.set(key, { key, links: [link.id], type: link.type, from: null, to: null, fromRegion: link.fromRegion, toRegion: link.toRegion, within: false });
    } else {
      const whole = link.to.length !== 1;
      lines.set(link.id, { key: link.id, links: [link.id], type: link.type, from: link.from, to: whole ? null : link.to[0], fromRegion: link.fromRegion, toRegion: link.toRegion, within: false });
    }
  }
  return { lines: [...lines.values()], inside };
}

/** The side of a box that looks toward a point; a side that a sibling instance stands behind is not taken. */
function sideToward(box, target, world, blocked) {
  const dx = (target.cx - box.cx) / world.width;
  const dy = (target.cy - box.cy) / world.height;
  // Between equal sides, the one toward the middle of the graph: the margin is no road.
  const inX = ((world.width / 2 - box.cx) / world.width) * 0.1;
  const inY = ((world.height / 2 - box.cy) / world.height) * 0.1;
  const scores = [['right', dx + inX], ['left', -dx - inX], ['bottom', dy + inY], ['top', -dy - inY]];
  let best = null;
  for (const [side, score] of scores) {
    if (blocked && blocked.has(side)) continue;
    if (!best || score > best.score + 1e-9) best = { side, score };
  }
  return best.side;
}

/** The sides of an instance's box with a sibling behind them. */
function blockedSides(region, instance) {
  const blocked = new Set();
  for (const other of region.instances) {
    if (other === instance) continue;
    if (other.cx > instance.cx) blocked.add('right');
    if (other.cx < instance.cx) blocked.add('left');
    if (other.cy > instance.cy) blocked.add('bottom');
    if (other.cy < instance.cy) blocked.add('top');
  }
  return blocked.size < 4 ? blocked : null;
}

/** Each direction keeps to its right: where two lines join the same boxes, the leaving one lies here relative to the arriving one. */
const LEAVING_LATER = { right: 1, left: -1, top: 1, bottom: -1 };

/**
 * Curves of all lines: {key, p0, p1, c0, c1, path}.
 * Lines that use the same side of a box are spread along it in the order of their other ends, so that they cross as little as they can.
 */
export function routeLines(lines, layout) {
  const { world, detail } = layout;
  const routes = new Map();
  const sides = new Map();
  const attach = (line, end, box, side, other) => {
    const key = `${box.key}|${side}`;
    let group = sides.get(key);
    if (!group) sides.set(key, (group = { box: box.area, side, ends: [] }));
    group.ends.push({ line, end, other, clip: box.clip });
  };
  for (const line of lines) {
    const A = layout.regions.get(line.fromRegion);
    const B = layout.regions.get(line.toRegion);
    if (line.within) {
      routes.set(line.key, routeWithin(line, A, layout));
      continue;
    }
    if (line.single) {
      routes.set(line.key, routeSingle(layout.instances.get(line.from), layout.instances.get(line.to), world));
      continue;
    }
    const source = line.from ? layout.instances.get(line.from) : null;
    const target = line.to ? layout.instances.get(line.to) : null;
    attach(line, 'from', ...endOf(A, source, B, world), target || B);
    attach(line, 'to', ...endOf(B, target, A, world), source || A);
  }
  const ports = new Map();
  for (const group of sides.values()) {
    const along = group.side === 'left' || group.side === 'right' ? 'y' : 'x';
    const key = along === 'y' ? 'cy' : 'cx';
    const later = LEAVING_LATER[group.side];
    group.ends.sort((a, b) => {
      const near = Math.round((a.other[key] - b.other[key]) / 40);
      if (near) return near;
      if (a.line.fromRegion === b.line.toRegion && a.line.toRegion === b.line.fromRegion) return a.end === 'from' ? later : -later;
      const exact = a.other[key] - b.other[key];
      if (exact) return exact;
      return a.line.key < b.line.key ? -1 : 1;
    });
    const { box } = group;
    const begin = along === 'y' ? box.y : box.x;
    const length = along === 'y' ? box.height : box.width;
    const room = Math.max(0, length - 20);
    const gap = group.ends.length > 1 ? Math.min(PORT_GAP[detail], room / (group.ends.length - 1)) : 0;
    group.ends.forEach((end, i) => {
      const at = begin + length / 2 + (i - (group.ends.length - 1) / 2) * gap;
      const edge = end.clip;
      const point = along === 'y'
        ? { x: group.side === 'left' ? edge.x : edge.x + edge.width, y: at }
        : { x: at, y: group.side === 'top' ? edge.y : edge.y + edge.height };
      ports.set(`${end.line.key}|${end.end}`, { point, normal: NORMALS[group.side], side: group.side });
    });
  }
  for (const line of lines) {
    if (line.within || line.single) continue;
    const a = ports.get(`${line.key}|from`);
    const b = ports.get(`${line.key}|to`);
    routes.set(line.key, { ...curve(a.point, a.normal, b.point, b.normal), side: b.side });
  }
  return routes;
}

/** The end of a line at a region: [{key, area (where ports lie), clip (whose border they lie on)}, side]. */
function endOf(region, instance, toward, world) {
  if (instance) {
    const side = sideToward(instance, toward, world, region.line && region.instances.length > 1 ? blockedSides(region, instance) : null);
    const across = region.line === 'column' ? side === 'top' || side === 'bottom' : side === 'left' || side === 'right';
    // On the short side of a line of instances, leaving lines share the side with the arriving ones.
    if (region.line && region.instances.length > 1 && across) return [{ key: `region ${region.name}`, area: instance, clip: instance }, side];
    return [{ key: `instance ${instance.name}`, area: instance, clip: instance }, side];
  }
  const side = sideToward(region, toward, world, null);
  if (region.line && region.instances.length > 1) {
    const [first, second] = region.instances;
    if (region.line === 'column' && (side === 'left' || side === 'right')) {
      const y = first.y + first.height;
      return [{ key: `gap ${region.name}`, area: { x: region.x, y, width: region.width, height: second.y - y }, clip: region }, side];
    }
    if (region.line === 'row' && (side === 'top' || side === 'bottom')) {
      const x = first.x + first.width;
      return [{ key: `gap ${region.name}`, area: { x, y: region.y, width: second.x - x, height: region.height }, clip: region }, side];
    }
    return [{ key: `region ${region.name}`, area: first, clip: region }, side];
  }
  return [{ key: `region ${region.name}`, area: region, clip: region }, side];
}

/**
 * The way from where a line enters a region to the instance that it is connected to: a failover shows as another way, while the line stays.
 * Where the instance stands behind the other one, the way goes along the frame.
 */
export function leadOf(route, region, instance, world) {
  const { p1, side } = route;
  const right = instance.x + instance.width;
  const bottom = instance.y + instance.height;
  if (region.line === 'column') {
    if (side === 'left' || side === 'right') {
      const x = side === 'left' ? instance.x + 8 : right - 8;
      return `M${n1(p1.x)} ${n1(p1.y)}H${n1(x)}V${n1(p1.y > bottom ? bottom : instance.y)}`;
    }
    const isLeft = region.cx < world.width / 2; // Outside, where no line leaves.
    const isNear = region.instances.every((other) => (side === 'top' ? other.y >= instance.y : other.y <= instance.y));
    if (isNear) return `M${n1(p1.x)} ${n1(p1.y)}V${n1(side === 'top' ? instance.y : bottom)}`;
    const edge = side === 'top' ? Math.min(...region.instances.map((other) => other.y)) - 6 : region.y + region.height - 6;
    return `M${n1(p1.x)} ${n1(p1.y)}V${n1(edge)}H${n1(isLeft ? region.x + 6 : region.x + region.width - 6)}V${n1(instance.cy)}H${n1(isLeft ? instance.x : right)}`;
  }
  if (side === 'top' || side === 'bottom') {
    const y = side === 'top' ? instance.y + 4 : bottom - 4;
    return `M${n1(p1.x)} ${n1(p1.y)}V${n1(y)}H${n1(p1.x > right ? right : instance.x)}`;
  }
  const isNear = region.instances.every((other) => (side === 'left' ? other.x >= instance.x : other.x <= instance.x));
  if (isNear) return `M${n1(p1.x)} ${n1(p1.y)}H${n1(side === 'left' ? instance.x : right)}`;
  const edge = side === 'left' ? region.x + 6 : region.x + region.width - 6;
  return `M${n1(p1.x)} ${n1(p1.y)}H${n1(edge)}V${n1(region.y + region.height - 6)}H${n1(instance.cx)}V${n1(bottom)}`;
}

/** A line between two neighbours of one region: straight through the gap between them, each direction on its right. */
function routeWithin(line, region, layout) {
  const a = layout.instances.get(line.from);
  const b = layout.instances.get(line.to);
  if (region.line === 'column') {
    const down = b.cy > a.cy;
    const x = a.cx + (down ? -1 : 1) * (a.width / 4);
    return straight({ x, y: down ? a.y + a.height : a.y }, { x, y: down ? b.y : b.y + b.height });
  }
  const east = b.cx > a.cx;
  const y = a.cy + (east ? 1 : -1) * Math.min(28, a.height / 4);
  return straight({ x: east ? a.x + a.width : a.x, y }, { x: east ? b.x : b.x + b.width, y });
}

function straight(p0, p1) {
  return shape(p0, { x: p0.x + (p1.x - p0.x) / 3, y: p0.y + (p1.y - p0.y) / 3 }, { x: p0.x + ((p1.x - p0.x) * 2) / 3, y: p0.y + ((p1.y - p0.y) * 2) / 3 }, p1);
}

/** A curve that leaves and enters at right angles and is bent to its right. */
function curve(p0, n0, p1, n1) {
  const dx = p1.x - p0.x;
  const dy = p1.y - p0.y;
  const distance = Math.hypot(dx, dy) || 1;
  const reach = Math.min(distance * 0.4, 220);
  const bend = Math.min(distance * 0.05, 14);
  const right = { x: (-dy / distance) * bend, y: (dx / distance) * bend };
  const c0 = { x: p0.x + n0.x * reach + right.x, y: p0.y + n0.y * reach + right.y };
  const c1 = { x: p1.x + n1.x * reach + right.x, y: p1.y + n1.y * reach + right.y };
  return shape(p0, c0, c1, p1);
}

/** The curve of one link from box to box, without shared ports: for links drawn singly over bundles. */
export function routeSingle(a, b, world, spread = 0) {
  const sideA = sideToward(a, b, world, null);
  const sideB = sideToward(b, a, world, null);
  const port = (box, side) => {
    const off = (side === 'left' || side === 'right' ? box.height : box.width) * 0.25 * spread;
    if (side === 'left') return { x: box.x, y: box.cy + off };
    if (side === 'right') return { x: box.x + box.width, y: box.cy + off };
    if (side === 'top') return { x: box.cx + off, y: box.y };
    return { x: box.cx + off, y: box.y + box.height };
  };
  return curve(port(a, sideA), NORMALS[sideA], port(b, sideB), NORMALS[sideB]);
}

const n1 = (value) => Math.round(value * 10) / 10;

function shape(p0, c0, c1, p1) {
  return {
    p0, c0, c1, p1,
    path: `M${n1(p0.x)} ${n1(p0.y)}C${n1(c0.x)} ${n1(c0.y)} ${n1(c1.x)} ${n1(c1.y)} ${n1(p1.x)} ${n1(p1.y)}`,
    length: Math.hypot(p1.x - p0.x, p1.y - p0.y),
  };
}

/** The point of a curve at t between 0 and 1, with its direction as an angle in degrees. */
export function pointAt(route, t) {
  const { p0, c0, c1, p1 } = route;
  const u = 1 - t;
  const x = u * u * u * p0.x + 3 * u * u * t * c0.x + 3 * u * t * t * c1.x + t * t * t * p1.x;
  const y = u * u * u * p0.y + 3 * u * u * t * c0.y + 3 * u * t * t * c1.y + t * t * t * p1.y;
  const dx = 3 * u * u * (c0.x - p0.x) + 6 * u * t * (c1.x - c0.x) + 3 * t * t * (p1.x - c1.x);
  const dy = 3 * u * u * (c0.y - p0.y) + 6 * u * t * (c1.y - c0.y) + 3 * t * t * (p1.y - c1.y);
  return { x, y, angle: (Math.atan2(dy, dx) * 180) / Math.PI };
}

const TRIES = [0.5, 0.44, 0.56, 0.38, 0.62, 0.32, 0.68, 0.26, 0.74, 0.2, 0.8];
const OFFSETS = [0, 1, -1, 2, -2, 3, -3];

/**
 * The places of cards: {key → {x, y, width, height, at}} for lines in their order. A card overlaps neither a box nor another card, and
 * hides as little of other lines as it can. A line for which there is no room is left out; its text is then shown when it is pointed at.
 */
export function placeCards(lines, routes, layout, extraBoxes = []) {
  const size = CARDS[layout.detail];
  const cards = new Map();
  const taken = [];
  const boxes = [...layout.regions.values(), ...extraBoxes];
  const sizes = [size, { width: Math.min(size.width, 148), height: size.height }, { width: size.width, height: 20 }, { width: Math.min(size.width, 96), height: 20 }];
  const crowd = crowdOf(lines, routes, layout.world);
  for (const line of lines) {
    const route = routes.get(line.key);
    if (line.within) {
      const region = layout.regions.get(line.fromRegion);
      const middle = pointAt(route, 0.48);
      const a = layout.instances.get(line.from);
      const width = region.line === 'column' ? a.width / 2 - 6 : Math.min(size.width, route.length - 24);
      const height = Math.min(size.height, region.line === 'column' || a.height > 100 ? 36 : 20);
      cards.set(line.key, { x: middle.x - width / 2, y: middle.y - height / 2, width, height, at: middle, t: 0.48, moved: false });
      continue;
    }
    let best = null;
    for (const { width, height } of sizes) {
      best = freeCard(route, width, height);
      if (best) break;
    }
    if (!best) continue;
    taken.push(best);
    cards.set(line.key, best);
  }
  return cards;

  function freeCard(route, width, height) {
    let best = null;
    for (const off of OFFSETS) {
      for (const t of TRIES) {
        const at = pointAt(route, t);
        const cx = at.x;
        const cy = at.y + off * (height / 2 + 4);
        const rect = { x: cx - width / 2, y: cy - height / 2, width, height, at, t, moved: off !== 0 };
        if (rect.x < 4 || rect.y < 4 || rect.x + rect.width > layout.world.width - 4 || rect.y + rect.height > layout.world.height - 4) continue;
        // Where the line itself passes behind a box, a leader would point at the box.
        if (off !== 0 && boxes.some((box) => hit({ x: at.x, y: at.y, width: 0, height: 0 }, box, 4))) continue;
        if (boxes.some((box) => hit(rect, box, 5)) || taken.some((other) => hit(rect, other, 3))) continue;
        let cost = Math.abs(t - 0.5) * 6 + Math.abs(off) * 4;
        cost += crowd(rect);
        if (!best || cost < best.cost) best = { rect, cost };
      }
      if (best && off === 0) break;
    }
    return best && best.rect;
  }
}

/** Counts, for a rectangle, the points of lines in it: on a grid, so that a thousand candidates cost little. */
function crowdOf(lines, routes, world) {
  const cell = 12;
  const columns = Math.ceil(world.width / cell) + 1;
  const rows = Math.ceil(world.height / cell) + 1;
  const counts = new Uint16Array(columns * rows);
  for (const line of lines) {
    const route = routes.get(line.key);
    const steps = Math.max(8, Math.ceil(route.length / cell));
    let last = -1;
    for (let i = 1; i < steps; i += 1) {
      const { x, y } = pointAt(route, i / steps);
      if (x < 0 || y < 0 || x >= world.width || y >= world.height) continue;
      const at = Math.floor(y / cell) * columns + Math.floor(x / cell);
      if (at !== last) counts[at] += 1;
      last = at;
    }
  }
  return (rect) => {
    let found = 0;
    const right = Math.min(columns - 1, Math.floor((rect.x + rect.width) / cell));
    const bottom = Math.min(rows - 1, Math.floor((rect.y + rect.height) / cell));
    for (let row = Math.max(0, Math.floor(rect.y / cell)); row <= bottom; row += 1) {
      for (let column = Math.max(0, Math.floor(rect.x / cell)); column <= right; column += 1) found += counts[row * columns + column];
    }
    return found / 4;
  };
}

export function hit(a, b, gap) {
  return a.x < b.x + b.width + gap && b.x < a.x + a.width + gap && a.y < b.y + b.height + gap && b.y < a.y + a.height + gap;
}
