# SPDX-License-Identifier: Apache-2.0
"""Make samples of notifications, by Ceilometer's own code.

Run with the Python that has Ceilometer: the directory of its definitions is
the argument, a notification in each line comes in, a sample in each line goes
out.
"""

import json
import sys

from ceilometer import service
from ceilometer.meter import notifications


def main():
    configuration = service.prepare_service([], [])
    configuration.set_override('meter_definitions_dirs', [sys.argv[1]],
                               'meter')
    meters = notifications.ProcessMeterNotifications(configuration, None)
    for line in sys.stdin:
        for sample in meters.build_sample(json.loads(line)):
            print(json.dumps(sample.as_dict(), default=str))


if __name__ == '__main__':
    main()
