# SPDX-License-Identifier: Apache-2.0
"""What pages look like in a real browser.

A program of the environment that has Selenium: a JSON of :func:`look`'s
arguments on its standard input, what that returns on its standard output.
"""

import itertools
import json
import os
import pathlib
import sys

from nova_vqos.tests.fixtures import browser

_HEIGHT = 900
_SCRIPT = pathlib.Path(__file__).with_suffix('.js')


def _resize(driver, width, height):
    driver.execute_cdp_cmd('Emulation.setDeviceMetricsOverride', {
        'width': width, 'height': height, 'deviceScaleFactor': 1,
        'mobile': False})


def _look(driver, address, scheme, width, picture):
    driver.execute_cdp_cmd('Emulation.setEmulatedMedia', {
        'features': [{'name': 'prefers-color-scheme', 'value': scheme}]})
    _resize(driver, width, _HEIGHT)
    driver.get(address)
    # All of it is in the window, so that a point of it is a point of that.
    _resize(driver, width, driver.execute_script(
        'return document.documentElement.scrollHeight'))
    seen = driver.execute_script(_SCRIPT.read_text())
    if picture:
        driver.save_screenshot(picture)
    return seen | {'console': driver.get_log('browser')}


def look(addresses, schemes, widths, pictures=''):
    """Show each page with each scheme of colours, in each width.

    :param addresses: by name
    :param schemes: light, dark
    :param widths: of the window, in pixels of CSS
    :param pictures: path of a directory for a screenshot of each
    :returns: a dict for each: page, scheme and width; texts: how many it has;
        faint: those with too little contrast, each with that and both colours;
        luminance: of its background, up to 1; wider: by how many pixels it is
        wider than the window; console: the browser's messages
    """
    seen = []
    with browser.browser() as driver:
        for name, scheme, width in itertools.product(
                addresses, schemes, widths):
            picture = f'{name.replace("/", "_")}.{scheme}.{width}.png'
            seen.append({
                'page': name, 'scheme': scheme, 'width': width
            } | _look(driver, addresses[name], scheme, width,
                      pictures and os.path.join(pictures, picture)))
    return seen


if __name__ == '__main__':
    os.environ['SE_OFFLINE'] = 'true'
    json.dump(look(**json.load(sys.stdin)), sys.stdout)
