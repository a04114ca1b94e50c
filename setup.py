# SPDX-License-Identifier: Apache-2.0
import setuptools


class Distribution(setuptools.Distribution):
    """Leaves the tests out of wheels; the sdist has them."""

    def finalize_options(self):
        # NOTE: here pbr sets the packages, of whole trees alone.
        super().finalize_options()
        self.packages = [name for name in self.packages
                         if not f'{name}.'.startswith('nova_vqos.tests.')]
        # By setuptools, modules of other packages are data.
        self.exclude_package_data = {'nova_vqos': ['tests/*']}


setuptools.setup(setup_requires=['pbr>=2.0.0'], pbr=True,
                 distclass=Distribution)
