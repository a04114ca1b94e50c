// SPDX-License-Identifier: Apache-2.0
// How legible a page is as it stands in the window, all of which it needs.
//
// Contrast is that of WCAG 2.1: https://www.w3.org/TR/WCAG21/#contrast-minimum
'use strict';

const LEAST = 4.5, LEAST_LARGE = 3;
const WHITE = [255, 255, 255, 1];

// Red, green and blue up to 255, and how opaque it is, up to 1.
function parsed(colour) {
    const found = /^rgba?\(([^)]+)\)$/.exec(colour);
    if (!found)
        throw new Error(`not a colour as rgb: ${colour}`);
    const [red, green, blue, alpha = 1] = found[1].split(/[,/ ]+/).map(Number);
    return [red, green, blue, alpha];
}

function over(front, back) {
    return [0, 1, 2].map(i => front[i] * front[3] + back[i] * (1 - front[3]))
        .concat(1);
}

function luminance(colour) {
    const [red, green, blue] = colour.map(one => {
        const part = one / 255;
        return part <= 0.04045 ? part / 12.92
            : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function contrast(one, other) {
    const [dark, light] = [luminance(one), luminance(other)].sort(
        (a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
}

// By https://www.w3.org/TR/filter-effects-1/#FilterPrimitivesOverview
const FILTERS = {
    invert(colour, text) {
        const part = parseFloat(text);
        return colour.map(one => 255 * part + one * (1 - 2 * part));
    },
    'hue-rotate'([red, green, blue], text) {
        const radians = parseFloat(text) * Math.PI / 180;
        const cos = Math.cos(radians), sin = Math.sin(radians);
        return [
            [0.213 + 0.787 * cos - 0.213 * sin,
             0.715 - 0.715 * cos - 0.715 * sin,
             0.072 - 0.072 * cos + 0.928 * sin],
            [0.213 - 0.213 * cos + 0.143 * sin,
             0.715 + 0.285 * cos + 0.140 * sin,
             0.072 - 0.072 * cos - 0.283 * sin],
            [0.213 - 0.213 * cos - 0.787 * sin,
             0.715 - 0.715 * cos + 0.715 * sin,
             0.072 + 0.928 * cos + 0.072 * sin],
        ].map(row => row[0] * red + row[1] * green + row[2] * blue);
    },
};

// What filters of an element and of those that it is in make of a colour.
function filtered(colour, element) {
    const [red, green, blue, alpha] = colour;
    let seen = [red, green, blue];
    for (const one of ancestors(element))
        for (const [, name, value] of getComputedStyle(one).filter.matchAll(
                /([\w-]+)\(([^)]+)\)/g))
            seen = FILTERS[name](seen, value).map(
                part => Math.min(255, Math.max(0, Math.round(part))));
    return [...seen, alpha];
}

// What an element paints behind others.
function paint(element) {
    const style = getComputedStyle(element);
    let colour = [0, 0, 0, 0];
    if (!(element instanceof SVGElement) || element.tagName === 'svg') {
        colour = parsed(style.backgroundColor);
    } else if (element instanceof SVGGeometryElement
               && style.fill.startsWith('rgb')) {
        colour = parsed(style.fill);
        colour[3] *= style.fillOpacity * style.opacity;
    }
    return filtered(colour, element);
}

// What is seen behind elements, the topmost of which comes first.
function behind(elements) {
    const layers = [];
    for (const element of elements) {
        layers.push(paint(element));
        if (layers.at(-1)[3] === 1)
            break;
    }
    return layers.reduceRight((back, front) => over(front, back), WHITE);
}

function ancestors(element) {
    const found = [];
    for (; element; element = element.parentElement)
        found.push(element);
    return found;
}

// Of drawings any shape can be behind a text, of HTML what the text is in.
function backgroundOf(element) {
    if (!(element instanceof SVGElement))
        return behind(ancestors(element));
    // Wide drawings scroll by themselves.
    element.scrollIntoView({block: 'nearest', inline: 'center'});
    const box = element.getBoundingClientRect();
    const below = document.elementsFromPoint(
        box.x + box.width / 2, box.y + box.height / 2);
    return behind(below.filter(one => one !== element));
}

function texts() {
    const walker = document.createTreeWalker(
        document.body, NodeFilter.SHOW_TEXT,
        node => node.data.trim() ? NodeFilter.FILTER_ACCEPT
            : NodeFilter.FILTER_REJECT);
    const found = [];
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        const range = document.createRange();
        range.selectNodeContents(walker.currentNode);
        const box = range.getBoundingClientRect();
        // What is for screen readers alone is a pixel wide.
        if (box.width > 1 && box.height > 1 && element.checkVisibility(
                {visibilityProperty: true, opacityProperty: true}))
            found.push([walker.currentNode.data.trim(), element]);
    }
    return found;
}

const faint = [], all = texts();
for (const [text, element] of all) {
    const style = getComputedStyle(element);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    const back = backgroundOf(element);
    const own = filtered(parsed(
        element instanceof SVGElement ? style.fill : style.color), element);
    for (const one of ancestors(element))
        own[3] *= getComputedStyle(one).opacity;
    const front = over(own, back);
    const found = contrast(front, back);
    if (found < (isLarge ? LEAST_LARGE : LEAST))
        faint.push([text.slice(0, 40), Number(found.toFixed(2)), front, back]);
}
return {
    texts: all.length,
    faint: faint,
    luminance: luminance(behind(ancestors(document.body))),
    wider: document.documentElement.scrollWidth
        - document.documentElement.clientWidth,
};
