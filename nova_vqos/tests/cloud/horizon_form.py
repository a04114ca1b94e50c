# SPDX-License-Identifier: Apache-2.0
"""Horizon's form "Update Metadata" of a flavor, in a real browser.

A program of the environment that has Selenium: a JSON of :func:`use`'s
arguments on its standard input, what that returns on its standard output.
"""

import json
import os
import sys

from selenium.webdriver.common.by import By
from selenium.webdriver.support import ui

from nova_vqos.tests.fixtures import browser

_WAIT_S = 60


class Form:
    """The form of one flavor, open."""

    def __init__(self, driver, flavor):
        self._driver = driver
        driver.get(f'{driver.current_url.partition("/project/")[0]}'
                   '/admin/flavors/')
        self._wait(lambda: driver.find_element(
            By.ID, f'flavors__row_{flavor}__action_update_metadata')).click()
        self._modal = self._wait(lambda: driver.find_element(
            By.CLASS_NAME, 'modal-content'))
        self._save = self._wait(lambda: self._modal.find_element(
            By.CSS_SELECTOR, '.modal-footer .btn-primary'))

    def _wait(self, found):
        return ui.WebDriverWait(self._driver, _WAIT_S).until(
            lambda _driver: found())

    def add(self, namespace):
        """Move all of a namespace to the right, with its plus."""
        row = self._wait(lambda: next(
            (one for one in self._modal.find_elements(
                By.CSS_SELECTOR, 'li.level-0') if one.text == namespace),
            None))
        row.find_element(By.CSS_SELECTOR, 'a.btn').click()

    def add_custom(self, name):
        field = self._modal.find_element(By.NAME, 'customItem')
        field.send_keys(name)
        self._modal.find_element(
            By.CSS_SELECTOR, '[ng-click*=addCustom]').click()

    def _rows(self):
        """:returns: the row of each extra spec that is set, by its name"""
        return {
            row.find_element(By.CLASS_NAME, 'input-group-addon').get_attribute(
                'title'): row
            for row in self._modal.find_elements(
                By.TAG_NAME, 'metadata-tree-item')}

    def _input(self, name):
        return self._rows()[name].find_element(By.NAME, 'property')

    def enter(self, name, value):
        field = self._input(name)
        if field.tag_name == 'select':
            ui.Select(field).select_by_visible_text(value)
        else:
            field.clear()
            field.send_keys(value)

    def remove(self, name):
        self._rows()[name].find_element(By.CSS_SELECTOR, 'a.btn').click()

    def fields(self):
        """:returns: what each field offers and has, by name"""
        return {name: self._field(name) for name in self._rows()}

    def _field(self, name):
        field = self._input(name)
        shown = {'value': field.get_attribute('value')}
        if field.tag_name == 'select':
            select = ui.Select(field)
            shown |= {'value': select.first_selected_option.text,
                      'enum': [one.text for one in select.options]}
        for limit in 'min', 'max':
            if field.get_attribute(limit):
                shown[limit] = int(field.get_attribute(limit))
        return shown

    def refused(self):
        """:returns: why it cannot be saved, by name; None: it can be"""
        if self._save.is_enabled():
            return None
        return {name: ' '.join(one.text for one in row.find_elements(
                    By.CLASS_NAME, 'label-danger'))
                for name, row in self._rows().items()
                if row.find_elements(By.CSS_SELECTOR, '.ng-invalid')}

    def save(self):
        self._save.click()
        # Closed once Horizon has saved it, and kept open when it cannot.
        self._wait(lambda: not self._driver.find_elements(
            By.CLASS_NAME, 'modal-content'))


def log_in(driver, address, password):
    driver.get(address)
    driver.find_element(By.ID, 'id_username').send_keys('admin')
    field = driver.find_element(By.ID, 'id_password')
    field.send_keys(password)
    field.submit()
    ui.WebDriverWait(driver, _WAIT_S).until(
        lambda driver: '/project/' in driver.current_url)


def use(address, password, flavor, namespace='', attempts=(), remove=(),
        custom=None, picture=''):
    """Open the form of a flavor, fill it in, and save it where it can be.

    :param namespace: all of which is added, unless it is there
    :param attempts: values by name, entered one set after the other
    :param remove: names that are taken away after that
    :param custom: values by name, added as custom ones after that
    :param picture: path of a screenshot, made before it is saved
    :returns: its fields as they were first; why it refused each attempt; and
        why it was not saved in the end: None, where it was
    """
    with browser.browser() as driver:
        log_in(driver, address, password)
        form = Form(driver, flavor)
        if namespace:
            form.add(namespace)
        fields, refused = form.fields(), []
        for attempt in attempts:
            for name, value in attempt.items():
                form.enter(name, value)
            refused.append(form.refused())
        for name in remove:
            form.remove(name)
        for name, value in (custom or {}).items():
            form.add_custom(name)
            form.enter(name, value)
        if picture:
            driver.save_screenshot(picture)
        end = form.refused()
        if end is None:
            form.save()
        return {'fields': fields, 'refused': refused, 'end': end}


if __name__ == '__main__':
    os.environ['SE_OFFLINE'] = 'true'
    json.dump(use(**json.load(sys.stdin)), sys.stdout)
