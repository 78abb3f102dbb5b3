// Returns the defects of the current page: text that is hard to read, elements without a name, widths that do not fit.
(() => {
  const wrong = [];
  const where = (e) => e.nodeName.toLowerCase() + (e.className && e.className.baseVal === undefined ? '.' + e.className : '') + ' "' + e.textContent.trim().slice(0, 40) + '"';
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.querySelectorAll('main *')].filter((e) => e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest('pre'));
    wrong.push(`scrolls sideways: ${root.scrollWidth} of ${root.clientWidth} px, as of ${wide.slice(-2).map(where)}`);
  }
  const parse = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (e) => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  const check = (e, colour, text) => {
    const ground = behind(e);
    const [a, b] = [light(over(parse(colour), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    looked++;
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)} of ${where(e)}: ${text} ${colour} on ${ground.slice(0, 3).map(Math.round)}`);
  };
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || e.closest('noscript, title, script') || !e.getClientRects().length) continue;
    check(e, getComputedStyle(e).color, '');
  }
  for (const e of document.querySelectorAll('td')) if (e.dataset.label && getComputedStyle(e, '::before').content !== 'none') check(e, getComputedStyle(e, '::before').color, 'label');
  for (const e of document.querySelectorAll('input')) if (e.placeholder) check(e, getComputedStyle(e, '::placeholder').color, 'placeholder');
  if (looked < 15) wrong.push(`only ${looked} texts were looked at`);
  for (const e of document.querySelectorAll('input:not([type=hidden]), select, button, a')) {
    if (!(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label'))) wrong.push('no name: ' + e.outerHTML.slice(0, 80));
  }
  for (const e of document.querySelectorAll('svg')) if (e.getAttribute('aria-hidden') !== 'true' && !(e.getAttribute('role') === 'img' && e.getAttribute('aria-label'))) wrong.push('picture without a name: ' + e.outerHTML.slice(0, 80));
  for (const e of document.querySelectorAll('[aria-labelledby]')) if (!document.getElementById(e.getAttribute('aria-labelledby'))) wrong.push('label of ' + where(e) + ' is missing');
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  if (new Set(ids).size !== ids.length) wrong.push('an id is there twice: ' + ids);
  const keys = new Map();
  for (const e of document.querySelectorAll('[data-key]')) {
    const of = keys.get(e.parentElement) || new Set();
    if (of.has(e.dataset.key)) wrong.push('a key is there twice: ' + e.dataset.key);
    keys.set(e.parentElement, of.add(e.dataset.key));
  }
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  if (!root.lang || !document.title) wrong.push('no language or no title');
  if (document.querySelectorAll('[style], style').length) wrong.push('an inline style');
  if (document.scripts.length !== 1 || window.hurt !== undefined) wrong.push('a script of a message');
  return wrong.join('\n');
})()
