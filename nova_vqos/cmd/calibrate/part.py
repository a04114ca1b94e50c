# SPDX-License-Identifier: Apache-2.0
"""Commands that measure a part of the profile of this host."""

import abc
import argparse
from collections.abc import Callable
import math
import typing as ty

from cliff import lister

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.run import Result
from nova_vqos.cmd import arguments
from nova_vqos.cmd import options
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import model
from nova_vqos.profile import validity


class MeasurePart(options.OptionsCommand, lister.Lister):
    """Measures a part, writes it into the profile, and shows it."""

    #: the profile's field, and how it gets there
    field: str
    to_document: Callable[[ty.Any], dict[str, ty.Any]]
    #: logs it, and returns columns and rows
    describe: Callable[[ty.Any, ty.Any], ty.Any]

    @abc.abstractmethod
    def calibrate(self, held: model.Profile,
                  parsed_args: argparse.Namespace) -> Result[ty.Any]:
        """
        :raises CalibrationError: when it cannot be measured
        """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        arguments.add_profile(
            parser, 'the file, written by the command cpu on this host')
        arguments.add_verification(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        path = parsed_args.profile
        held = document.load(path)
        arguments.check_writable(path, 'another PROFILE')
        check_fresh(held, parsed_args.verification)
        result = self.calibrate(held, parsed_args)
        if document.load(path).id != held.id:
            raise CalibrationError(
                f'another program changed {path} meanwhile: measure again')
        part: dict[str, ty.Any] = {
            self.field: self.to_document(result.measured)}
        written = held._replace(**part)
        document.store(written, path)
        self.app.LOG.info('Wrote profile %s to %s', written.id, path)
        for warning in result.warnings:
            self.app.LOG.warning('Warning: %s', warning)
        return self.describe(self.app.LOG, result.measured)


def check_fresh(held: model.Profile, verification_path: str) -> None:
    """
    :param verification_path: of the last verification, if there was one
    :raises CalibrationError: when the profile is not of this host as it is
    """
    # Not by intervals: they are of speed. What is written has another id, and
    # by that the record of the verification would no longer be of it.
    reasons = [
        *validity.staleness(
            held, fingerprint.of_host(held.fingerprint.get('emulator')),
            max_interval=math.inf),
        *filter(None, [validity.why_stale(verification_path, held.id)])]
    if reasons:
        raise CalibrationError(
            'the profile is not of this host as it is now, measure it with '
            f'the command cpu first: {"; ".join(reasons)}')
