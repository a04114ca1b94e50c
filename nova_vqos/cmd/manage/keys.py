# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage key create."""

import argparse
import os
import typing as ty

from cliff import show

from nova_vqos import files
from nova_vqos import push_keys
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors

COLUMNS = ('private_key', 'public_key', 'public')


class CreateKey(command.ManageCommand, show.ShowOne):
    """Make a key that signs policy pushes.

    Writes the private key for its owner alone, and the public one beside it,
    with .pub added to the name. Set [vqos_manage] push_private_key here, and
    [vqos_agent] push_public_keys on each host, to the two paths.
    """

    # openstackclient would ask Keystone before any command.
    auth_required = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('path', metavar='FILE',
                            help='path of the private key')
        parser.add_argument(
            '--force', action='store_true',
            help='replace a key that is there: pushes that it signed are not '
                 'valid any more where the new one replaces it')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        path = os.path.abspath(parsed_args.path)
        public_path, force = f'{path}.pub', parsed_args.force
        private, public = push_keys.make_key()
        try:
            for one in (path, public_path):
                if os.path.lexists(one) and not force:
                    raise FileExistsError
            # NOTE: again without replacement: there may be one by now.
            files.write(private, path, mode=0o600, replace=force)
            files.write(public, public_path, replace=force)
        except FileExistsError as error:
            raise errors.ManageError(
                f'{path} or {public_path} exists: give another path, or '
                '--force to replace both') from error
        except OSError as error:
            raise errors.ManageError(
                f'the key cannot be written: {error}') from error
        return COLUMNS, (path, public_path, public.decode())
