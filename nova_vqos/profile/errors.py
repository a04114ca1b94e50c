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


"""Why a profile cannot be used."""


class ProfileError(Exception):
    """A profile that cannot be used."""


class ProfileMissing(ProfileError):
    """There is no profile at this path."""


class ProfileUnsafe(ProfileError):
    """Somebody else than its owner could have written the profile."""


class ProfileInvalid(ProfileError):
    """The content is not that of a profile."""
