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
"""The probe on a machine with cgroups of version 2, and nothing else on it.

Run by newer_machine; what was seen is printed as JSON.
"""

import json
import pathlib
import time
import traceback

from nova_vqos.calibration import benchmark
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe
from nova_vqos.quantum import proof as proofs

CGROUPS = pathlib.Path('/sys/fs/cgroup')
TRIES = 10


def main():
    seen = {}
    try:
        seen['refused'] = refusal()
        # As systemd would, for the first unit that has a weight.
        (CGROUPS / 'cgroup.subtree_control').write_text('+cpu')
        for _ in range(TRIES):
            proof = probe.measure(classes.DEFAULT_SLICES_US)
            if all(outcome.enforced is not None
                   for outcome in proof.outcomes.values()):
                break
            # Whatever it was that came in.
            time.sleep(1)
        seen['tick_us'] = proof.tick_us
        seen['outcomes'] = {name: proofs.document(outcome) for name, outcome
                            in proof.outcomes.items()}
        seen['left'] = [path.name for path in CGROUPS.iterdir()
                        if path.is_dir()]
    except Exception:
        # The test shows it: nothing else gets out of this guest.
        seen['failed'] = traceback.format_exc()
    print(json.dumps(seen), flush=True)


def refusal():
    try:
        probe.measure(classes.DEFAULT_SLICES_US)
    except benchmark.CalibrationError as error:
        return str(error)
    return ''


if __name__ == '__main__':
    main()
