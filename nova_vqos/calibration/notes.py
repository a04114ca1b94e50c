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


"""What people should know of a calibration."""


class Notes:
    """Gathered while it is under way.

    :ivar provenance: what was seen, by name, for the profile
    """

    def __init__(self) -> None:
        self.provenance: dict[str, str] = {}
        self._warnings: list[str] = []

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be wrong with the result, one text each."""
        return tuple(self._warnings)

    def warn(self, warning: str) -> None:
        """Add a warning, unless it is there already."""
        if warning not in self._warnings:
            self._warnings.append(warning)
