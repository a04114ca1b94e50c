# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What goes wrong for an operator, in one line."""


class ManageError(Exception):
    """What was asked for cannot be done; says why, and what to do."""


def one_line(error: object) -> str:
    """What an exception, or a text, says, whatever its layout."""
    return ' '.join(str(error).split()) or type(error).__name__
