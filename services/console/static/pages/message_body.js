// Bodies as lines of text, made in slices, so that one of 20 MB freezes nothing. Nothing is parsed to
// numbers: JSON is indented as the text it is, and all digits stay.

const LINE_CHARACTERS = 400; // A longer line goes on in the next one: browsers lay out long lines slowly.
const SLICE_MS = 8;
const SLICE_CHARACTERS = 32_768; // Between two looks at the clock.
const HEX_BYTES = 16;
const INDENT = '  ';

export const HEX_CHARACTERS = 16 + HEX_BYTES * 4;

// Runs a generator in slices. Returns what it returns; null when the signal was aborted.
export async function inSlices(work, signal) {
  let began = performance.now();
  for (;;) {
    const { done, value } = work.next();
    if (done) return value;
    if (signal?.aborted) return null;
    if (performance.now() - began > SLICE_MS) {
      await new Promise((resolve) => { setTimeout(resolve); });
      began = performance.now();
    }
  }
}

// Adds a line, in parts where it is long.
function add(found, line) {
  if (line.length <= LINE_CHARACTERS) {
    found.push(line);
    return;
  }
  for (let at = 0; at < line.length; at += LINE_CHARACTERS) {
    found.push(line.slice(at, at + LINE_CHARACTERS));
  }
}

// The lines of a text as it came.
export function* plainLines(text) {
  const found = [];
  let at = 0;
  let checked = 0;
  while (at <= text.length) {
    let end = text.indexOf('\n', at);
    if (end < 0) end = text.length;
    // Of one very long line, too, only a part at a time.
    for (let from = at; from === at || from < end; from += SLICE_CHARACTERS) {
      add(found, text.slice(from, Math.min(from + SLICE_CHARACTERS, end)).replace(/\r$/, ''));
      if (end - at > SLICE_CHARACTERS) yield;
    }
    at = end + 1;
    if (at - checked > SLICE_CHARACTERS) {
      checked = at;
      yield;
    }
  }
  if (found.length > 1 && found.at(-1) === '') found.pop();
  return found;
}

const SPACE = /\s/;
const BARE = /[^\s,:{}[\]"]+/y;
const VALUE = /^(?:-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null)$/;

// The lines of a JSON text, indented; null where it is none. A text that was cut is indented as far
// as it goes.
export function* jsonLines(text, isCut = false) {
  const found = [];
  const open = [];
  let line = '';
  let depth = 0;
  let at = 0;
  let checked = 0;
  const end = () => {
    add(found, line);
    line = INDENT.repeat(Math.min(depth, 40));
  };
  while (at < text.length) {
    if (at - checked > SLICE_CHARACTERS) {
      checked = at;
      yield;
    }
    const sign = text[at];
    if (SPACE.test(sign)) {
      at += 1;
    } else if (sign === '"') {
      let close = at + 1;
      for (;;) {
        close = text.indexOf('"', close);
        if (close < 0) break;
        let slashes = 0;
        while (text[close - 1 - slashes] === '\\') slashes += 1;
        if (slashes % 2 === 0) break;
        close += 1;
      }
      if (close < 0 && !isCut) return null;
      const after = close < 0 ? text.length : close + 1;
      // A very long text is added in parts, each of which is a line.
      for (let from = at; from < after; from += LINE_CHARACTERS) {
        line += text.slice(from, Math.min(after, from + LINE_CHARACTERS));
        if (after - from > LINE_CHARACTERS) {
          found.push(line);
          line = '';
          if (from - checked > SLICE_CHARACTERS) {
            checked = from;
            yield;
          }
        }
      }
      at = after;
    } else if (sign === '{' || sign === '[') {
      const next = /\s*/y;
      next.lastIndex = at + 1;
      next.test(text);
      const close = sign === '{' ? '}' : ']';
      if (text[next.lastIndex] === close) {
        line += sign + close;
        at = next.lastIndex + 1;
      } else {
        line += sign;
        open.push(close);
        depth += 1;
        end();
        at += 1;
      }
    } else if (sign === '}' || sign === ']') {
      if (open.pop() !== sign) return null;
      depth -= 1;
      end();
      line += sign;
      at += 1;
    } else if (sign === ',') {
      line += ',';
      end();
      at += 1;
    } else if (sign === ':') {
      line += ': ';
      at += 1;
    } else {
      BARE.lastIndex = at;
      const value = BARE.exec(text)[0];
      at += value.length;
      if (!VALUE.test(value) && !(isCut && at === text.length)) return null;
      line += value;
    }
    if (depth === 0 && line.trim() && at < text.length && !/^\s*$/.test(text.slice(at, at + 64))) {
      // Several values one after another are no JSON, but lines of it.
      if (!SPACE.test(text[at])) return null;
      end();
    }
  }
  if (open.length && !isCut) return null;
  if (line.trim()) add(found, line);
  return found;
}

const XML_PART = /<!--[\s\S]*?-->|<!\[CDATA\[[\s\S]*?\]\]>|<[^>]*>|[^<]+/g;

// The lines of an XML text, indented by its elements; null where it is none.
export function* xmlLines(text) {
  if (!/^\s*</.test(text)) return null;
  const found = [];
  let depth = 0;
  let checked = 0;
  let opened = null; // An element whose start was the last part: a text after it stays on its line.
  for (const match of text.matchAll(XML_PART)) {
    const part = match[0].trim();
    if (match.index - checked > SLICE_CHARACTERS) {
      checked = match.index;
      yield;
    }
    if (!part) continue;
    const pad = INDENT.repeat(Math.min(depth, 40));
    if (part.startsWith('</')) {
      depth = Math.max(0, depth - 1);
      if (opened !== null) add(found, opened + part);
      else add(found, INDENT.repeat(Math.min(depth, 40)) + part);
      opened = null;
    } else if (part.startsWith('<')) {
      if (opened !== null) add(found, opened);
      opened = null;
      if (/^<[?!]|\/>$/.test(part)) add(found, pad + part);
      else {
        opened = pad + part;
        depth += 1;
      }
    } else if (opened !== null) {
      opened += part;
    } else add(found, pad + part);
  }
  if (opened !== null) add(found, opened);
  return found;
}

const TAGS = {
  1: 'Account', 6: 'AvgPx', 8: 'BeginString', 9: 'BodyLength', 10: 'CheckSum', 11: 'ClOrdID',
  14: 'CumQty', 15: 'Currency', 17: 'ExecID', 20: 'ExecTransType', 21: 'HandlInst', 22: 'SecurityIDSource',
  30: 'LastMkt', 31: 'LastPx', 32: 'LastQty', 34: 'MsgSeqNum', 35: 'MsgType', 37: 'OrderID', 38: 'OrderQty',
  39: 'OrdStatus', 40: 'OrdType', 41: 'OrigClOrdID', 43: 'PossDupFlag', 44: 'Price', 48: 'SecurityID',
  49: 'SenderCompID', 50: 'SenderSubID', 52: 'SendingTime', 54: 'Side', 55: 'Symbol', 56: 'TargetCompID',
  58: 'Text', 59: 'TimeInForce', 60: 'TransactTime', 64: 'SettlDate', 75: 'TradeDate', 76: 'ExecBroker',
  99: 'StopPx', 100: 'ExDestination', 102: 'CxlRejReason', 103: 'OrdRejReason', 150: 'ExecType',
  151: 'LeavesQty', 167: 'SecurityType', 207: 'SecurityExchange', 262: 'MDReqID', 268: 'NoMDEntries',
  269: 'MDEntryType', 270: 'MDEntryPx', 271: 'MDEntrySize', 371: 'RefTagID', 372: 'RefMsgType',
};

// A field on each line, with the names of FIX tags that are often met.
export function* fixLines(text) {
  const separator = ['\u0001', '\u001e', '|', ';'].find((each) => text.includes(each)) ?? '\u0001';
  const found = [];
  let number = 0;
  for (const field of text.split(separator)) {
    number += 1;
    if (number % 500 === 0) yield;
    if (!field.trim()) continue;
    const at = field.indexOf('=');
    const tag = at < 0 ? field : field.slice(0, at);
    const name = TAGS[tag];
    add(found, at < 0 ? field : `${tag}${name ? ` ${name}` : ''} = ${field.slice(at + 1)}`);
  }
  return found;
}

// One line of a hexadecimal dump.
export function hexLine(bytes, number) {
  const part = bytes.subarray(number * HEX_BYTES, (number + 1) * HEX_BYTES);
  let digits = '';
  let text = '';
  for (let at = 0; at < HEX_BYTES; at += 1) {
    if (at === HEX_BYTES / 2) digits += ' ';
    digits += at < part.length ? `${part[at].toString(16).padStart(2, '0')} ` : '   ';
    if (at < part.length) text += part[at] >= 32 && part[at] < 127 ? String.fromCharCode(part[at]) : '·';
  }
  return `${(number * HEX_BYTES).toString(16).padStart(8, '0')}  ${digits} ${text}`;
}

export const hexLines = (bytes) => Math.ceil(bytes.length / HEX_BYTES);

export function bytesOfHex(text) {
  const found = new Uint8Array(text.length >> 1);
  for (let at = 0; at < found.length; at += 1) found[at] = parseInt(text.substr(2 * at, 2), 16);
  return found;
}

// What a body can be shown as, the best first.
export function kindsOf(message) {
  const { message_type: type, is_text: isText, values } = message;
  if (!isText) return values ? ['fields', 'hex'] : ['hex'];
  if (/fix/i.test(type)) return ['fields', 'text', 'hex'];
  return ['pretty', 'text', 'hex'];
}

// Returns the generator of the lines of a text as this kind.
export async function linesOf(kind, message, text, isCut, signal) {
  if (kind === 'fields' && message.values) {
    return (await inSlices(jsonLines(message.values), signal)) ?? inSlices(plainLines(message.values), signal);
  }
  if (kind === 'fields') return inSlices(fixLines(text), signal);
  if (kind === 'pretty') {
    const start = text.slice(0, 200).trimStart();
    if (message.message_type === 'xml' || start.startsWith('<')) {
      const found = await inSlices(xmlLines(text), signal);
      if (found) return found;
    } else {
      const found = await inSlices(jsonLines(text, isCut), signal);
      if (found) return found;
    }
  }
  return inSlices(plainLines(text), signal);
}

const TOKEN = /("(?:[^"\\]|\\.)*"?)(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b|(<\/?[^\s>]+>?)/g;

// Divides a line for its colours: [class, text] each.
export function colours(line) {
  const found = [];
  let at = 0;
  for (const match of line.matchAll(TOKEN)) {
    if (match.index > at) found.push(['', line.slice(at, match.index)]);
    const [all, text, colon, number, word, tag] = match;
    if (text !== undefined && colon !== undefined) {
      found.push(['code-key', text], ['', colon]);
    } else if (text !== undefined) found.push(['code-text', text]);
    else if (number !== undefined) found.push(['code-number', number]);
    else if (word !== undefined) found.push(['code-word', word]);
    else if (tag !== undefined) found.push(['code-key', tag]);
    at = match.index + all.length;
  }
  if (at < line.length) found.push(['', line.slice(at)]);
  return found;
}
