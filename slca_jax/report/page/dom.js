'use strict';
// Elements are made here and nowhere else, and texts become text: nothing that a policy wrote is ever read as markup.
const make = (space, tag, props, children) => {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || (value === false && !name.startsWith('aria-'))) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name.startsWith('--')) node.style.setProperty(name, value);
    else node.setAttribute(name, value === true && !name.startsWith('aria-') ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
};
const h = (tag, props, ...children) => make(null, tag, props, children);
const s = (tag, props, ...children) => make('http://www.w3.org/2000/svg', tag, props, children);
const byId = (id) => document.getElementById(id);
const read = (id) => JSON.parse(byId(id).textContent);

const number = (value, digits = 2) =>
  value === null || value === undefined ? '—' : value.toFixed(digits).replace('-', '−');
const signed = (value, digits = 2) =>
  value === null || value === undefined ? '—' : (value > 0 ? '+' : '') + number(value, digits);
const compact = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1).replace('-', '−');
  return number(value, size >= 1000 ? 0 : size >= 10 ? 1 : 3);
};
const percent = (share) => `${(100 * share).toFixed(share < 0.1 && share > 0 ? 1 : 0)}%`;
const seconds = (value) => {
  if (value >= 5400) return `${(value / 3600).toFixed(1)} h`;
  return value >= 90 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`;
};

// An advantage as a tint: blue above the group, orange below, as strong as it is far, full from 1.5 deviations on.
const tint = (value) => ({
  class: value > 1e-6 ? 'up' : value < -1e-6 ? 'down' : 'even',
  '--a': Math.min(1, 0.12 + Math.abs(value) / 1.5).toFixed(3),
});
const tinted = (tag, value, extra, ...children) => {
  const look = tint(value ?? 0);
  return h(tag, { ...look, ...extra, class: `${look.class} ${(extra && extra.class) || ''}` }, ...children);
};

const chip = (text, kind, title) => h('span', { class: `chip ${kind || ''}`, title }, text);
const STATUS = {
  finished: 'finished', out_of_turns: 'out of turns', out_of_tokens: 'out of tokens', failed: 'failed',
};
const meter = (label, value, kind, note) =>
  h('div', { class: `meter ${kind}` },
    h('span', { class: 'label' }, label), h('b', {}, number(value)),
    h('i', {}, h('i', { '--w': Math.max(0, Math.min(1, value ?? 0)) })),
    note ? h('small', {}, note) : null);
