# SPDX-License-Identifier: Apache-2.0
import configparser
import pathlib
import sys

_TOP = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(_TOP / 'doc/ext'))

project = 'nova_vqos'
copyright = 'nova_vqos developers'
extensions = ['openstackdocstheme', 'oslo_config.sphinxext',
              'reno.sphinxext', 'sphinx.ext.graphviz',
              # Ours, see doc/ext.
              'host_names', 'log_lines', 'metric_families', 'navigation',
              'profile_fields', 'program_help', 'prose', 'rpc_methods']
html_theme = 'openstackdocs'
openstackdocs_auto_name = False
# The theme's own guess goes by Git's tags alone.
openstackdocs_auto_version = False
_setup = configparser.ConfigParser()
_setup.read(_TOP / 'setup.cfg')
version = release = _setup['metadata']['version']
openstackdocs_pdf_link = False
exclude_patterns = []
# Most blocks are commands: guessed as Python they have odd colours.
highlight_language = 'none'
# The theme's own are for openstack.org: its search, and who reads what.
html_theme_options = {'analytics_tracking_code': '', 'display_badge': False}
templates_path = ['_templates']
html_static_path = ['_static']
html_css_files = ['colours.css', 'nova_vqos.css']
# What docstrings name is in the code, not in these pages.
nitpick_ignore_regex = [('py:.*', '.*')]
graphviz_output_format = 'svg'
# One look for all diagrams: dark on light, which colours.css turns round on
# dark screens. The font is a wide one, so that any other fits its boxes.
graphviz_dot_args = [
    '-Gbgcolor=white', '-Gfontname=DejaVu Sans,sans-serif', '-Gfontsize=11',
    '-Gpad=0.15', '-Gnodesep=0.35', '-Granksep=0.45', '-Gcolor=#8fa3b0',
    '-Gfontcolor=#2a4e68', '-Gstyle=rounded',
    '-Nshape=box', '-Nstyle=filled', '-Nfillcolor=#ecf2f7',
    '-Ncolor=#2a4e68', '-Nfontcolor=#1a1a1a',
    '-Nfontname=DejaVu Sans,sans-serif', '-Nfontsize=10.5',
    '-Nmargin=0.12,0.07', '-Nheight=0.3',
    '-Ecolor=#2a4e68', '-Efontcolor=#333333', '-Earrowsize=0.7',
    '-Efontname=DejaVu Sans,sans-serif', '-Efontsize=9.5']
autoprogram_cliff_app_dist_name = 'nova_vqos'
# Of how answers are printed: the same for all commands.
autoprogram_cliff_ignored = [
    '--help', '--format', '--column', '--quote', '--noindent', '--max-width',
    '--fit-width', '--print-empty', '--sort-column', '--sort-ascending',
    '--sort-descending', '--prefix', '--variable']
