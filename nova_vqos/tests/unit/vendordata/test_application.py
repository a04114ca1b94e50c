# SPDX-License-Identifier: Apache-2.0
"""Who is answered what: by the real middleware, with a Keystone of a fixture.
"""

import io
import json
import logging
import threading

from hypothesis import given
from hypothesis import strategies as st
from keystoneauth1 import exceptions
from keystonemiddleware import auth_token
from keystonemiddleware import fixture as keystone_fixture
from oslo_config import cfg
import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.conf import vendordata
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import vendordata as fixtures
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import application
from nova_vqos.vendordata import failures
from nova_vqos.vendordata import figures
from nova_vqos.vendordata import keystone as keystones

DEADLINE_S = 10.0
# For what hangs.
SHORT_DEADLINE_S = 0.2
NOVA, TENANT, STRANGER = 'of-nova', 'of-a-tenant', 'unknown'
FOUND = figures.of(server_report.ServerDetail(server_uuid=fakes.UUID,
                                              entitled_cu=60))
QUESTION = {'instance-id': fakes.UUID, 'project-id': 'p', 'image-id': None,
            'user-data': 'x' * 65_535, 'hostname': 'h', 'metadata': {},
            'boot-roles': ''}


def make_conf(directory, text=''):
    path = directory / 'nova-vqos.conf'
    path.write_text('[keystone_authtoken]\n'
                    f'www_authenticate_uri = http://keystone.test\n{text}')
    conf = cfg.ConfigOpts()
    vendordata.register_opts(conf)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    keystones.register_opts(conf)
    return conf


class Service:
    """:ivar asked: servers and projects, in order; an error is raised"""

    def __init__(self, conf):
        self.asked = []
        self.found = FOUND
        self.clock = fixtures.Clock()
        self.callers = keystones.Callers(
            conf, most_at_once=2, failed=failures.Failures(),
            clock=self.clock)
        self.answer_within(DEADLINE_S)

    def answer_within(self, deadline_s):
        self._application = application.make(self._get, self.callers,
                                             deadline_s)

    def _get(self, server_uuid, project_id, wait_s):
        assert 0 < wait_s <= DEADLINE_S
        self.asked.append((server_uuid, project_id))
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def request(self, body=None, *, token=NOVA, method='POST', path='/',
                length=None, **headers):
        """:returns: status, and the body's JSON"""
        body = json.dumps(QUESTION).encode() if body is None else body
        environ = {
            'REQUEST_METHOD': method, 'PATH_INFO': path,
            'SERVER_NAME': 'here', 'SERVER_PORT': '1',
            'wsgi.url_scheme': 'http', 'wsgi.input': io.BytesIO(body),
            'CONTENT_LENGTH': str(len(body)) if length is None else length,
            **headers}
        if token:
            environ['HTTP_X_AUTH_TOKEN'] = token
        statuses = []
        answer = b''.join(self._application(
            environ, lambda status, *_: statuses.append(status)))
        (status,) = statuses
        return int(status.split()[0]), json.loads(answer)


@pytest.fixture(scope='module')
def keystone():
    made = keystone_fixture.AuthTokenFixture()
    made.setUp()
    made.add_token_data(NOVA, user_id='nova', role_list=['admin', 'service'])
    made.add_token_data(TENANT, user_id='t', role_list=['member', 'reader'])
    yield made
    made.cleanUp()


@pytest.fixture
def conf(tmp_path):
    return make_conf(tmp_path)


@pytest.fixture
def service(keystone, conf):
    return Service(conf)


class TestWhoIsAnswered:
    def test_nova(self, service):
        assert service.request() == (200, FOUND.to_dict())
        assert service.asked == [(fakes.UUID, 'p')]

    def test_a_tenant_is_not_even_for_his_own_server(self, service):
        assert service.request(token=TENANT)[0] == 403
        assert not service.asked

    @pytest.mark.parametrize('token', [None, STRANGER])
    def test_nobody_else(self, service, token):
        assert service.request(token=token)[0] == 401
        assert not service.asked

    def test_roles_are_keystones_and_not_the_callers(self, service):
        forged = {'HTTP_X_ROLES': 'service',
                  'HTTP_X_IDENTITY_STATUS': 'Confirmed'}
        assert service.request(token=None, **forged)[0] == 401
        assert service.request(token=TENANT, **forged)[0] == 403
        assert not service.asked

    def test_another_role_where_the_operator_says_so(self, keystone,
                                                     tmp_path):
        service = Service(make_conf(
            tmp_path, '[vqos_vendordata]\ncaller_roles = reader\n'))
        assert service.request(token=TENANT)[0] == 200
        assert service.request(token=NOVA)[0] == 403

    def test_a_keystone_that_hangs_is_not_waited_for(self, conf):
        assert conf.keystone_authtoken.http_connect_timeout == 3
        assert conf.keystone_authtoken.http_request_max_retries == 0


class TestWhatIsAsked:
    @pytest.mark.parametrize('method', ['GET', 'HEAD', 'PUT', 'DELETE'])
    def test_only_post(self, service, method):
        assert service.request(method=method)[0] == 405

    def test_only_one_path(self, service):
        assert service.request(path='/servers')[0] == 404
        assert service.request(path='')[0] == 200

    @pytest.mark.parametrize('length, status', [
        ('', 411), ('-1', 411), ('1e3', 411), ('²', 411), ('9' * 5000, 411),
        (str(application.MOST_BODY_BYTES + 1), 413)])
    def test_a_body_of_bounded_size(self, service, length, status):
        read = io.BytesIO(b'x' * 2 * application.MOST_BODY_BYTES)
        found = service.request(length=length, **{'wsgi.input': read})
        assert found[0] == status
        assert read.tell() == 0

    def test_the_largest_question_of_novas(self, service):
        """128 items of metadata, and user data of 64 KiB."""
        question = {**QUESTION, 'metadata': {
            f'{number}'.rjust(255, '\u00e4'): '\u00e4' * 255
            for number in range(128)}}
        # As Nova's oslo.serialization: each character takes six bytes.
        assert service.request(json.dumps(question).encode())[0] == 200

    def test_a_body_that_ends_early(self, service):
        assert service.request(b'{}', length='10')[0] == 400

    @pytest.mark.parametrize('changes', [
        {'instance-id': None}, {'instance-id': 'x'},
        {'instance-id': fakes.UUID.replace('-', '')},
        {'instance-id': fakes.UUID.upper().replace('1', 'A')},
        {'instance-id': [fakes.UUID]}, {'project-id': None},
        {'project-id': ''}, {'project-id': 'x' * 256}, {'project-id': 1}])
    def test_it_names_a_server_and_a_project(self, service, changes):
        body = json.dumps({**QUESTION, **changes}).encode()
        assert service.request(body)[0] == 400
        assert not service.asked

    @pytest.mark.parametrize('body', [
        b'', b'null', b'[]', b'{', b'\xff', b'[' * 100_000, b'9' * 5000])
    def test_it_is_json(self, service, body):
        assert service.request(body)[0] == 400

    @given(st.binary(max_size=200))
    def test_any_bytes_are_answered(self, body):
        # No fixture: Hypothesis asks the same one again and again.
        with pytest.raises(application._Refusal):
            application._question(body)


class TestAnswers:
    def test_a_project_without_the_server(self, service):
        service.found = None
        status, body = service.request()
        assert status == 404
        assert set(body) == {'error'}

    def test_an_error_says_nothing_of_the_inside(self, service, caplog):
        service.found = RuntimeError('a secret')
        assert service.request() == (500, {'error': 'internal error'})
        assert 'a secret' in caplog.text


class Failing:
    """What the middleware asks Keystone for; it fails.

    :ivar asked: how often
    :ivar error: is raised; None: it hangs until it is released
    """

    def __init__(self):
        self.asked = 0
        self.error = None
        self.released = threading.Event()

    def __call__(self, _token, **_options):
        self.asked += 1
        if self.error is not None:
            raise self.error
        self.released.wait(waits.LIMIT_S)
        raise exceptions.ConnectTimeout('released')


@pytest.fixture
def failing(service, monkeypatch):
    made = Failing()
    with monkeypatch.context() as changed:
        changed.setattr(service.callers._middleware, 'fetch_token', made)
        yield made
    made.released.set()


def levels(caplog):
    return [one.levelname for one in caplog.records
            if one.name.startswith('nova_vqos')]


class TestKeystoneFails:
    @pytest.mark.parametrize('error', [
        exceptions.ConnectTimeout('x'), exceptions.EndpointNotFound('x'),
        exceptions.MissingAuthPlugin('x'), auth_token.ServiceError('x')])
    def test_it_is_no_fault_of_the_callers(self, service, failing, caplog,
                                           error):
        failing.error = error
        for _ in range(3):
            assert service.request()[0] == 503
        # It is asked each time: it might answer.
        assert failing.asked == 3
        assert levels(caplog) == ['WARNING']
        assert 'Traceback' not in caplog.text

    def test_it_is_logged_once_and_its_end_too(self, service, failing, caplog,
                                               monkeypatch):
        caplog.set_level(logging.INFO, 'nova_vqos')
        for number in range(3):
            # As keystoneauth has it: another text each time.
            failing.error = exceptions.ConnectFailure(f'of token {number}')
            service.request()
        assert levels(caplog) == ['WARNING']
        failing.error = auth_token.InvalidToken()
        assert service.request()[0] == 401
        assert levels(caplog) == ['WARNING', 'INFO']

    def test_one_that_hangs_is_left_alone(self, service, failing, caplog):
        service.answer_within(SHORT_DEADLINE_S)
        threads = threading.active_count()
        assert service.request()[0] == 503
        for _ in range(5):
            assert service.request()[0] == 503
        assert failing.asked == 1
        # Then one caller tries.
        service.clock.now_s += keystones.RETRY_S
        assert service.request()[0] == 503
        assert service.request()[0] == 503
        assert failing.asked == 2
        # And that is all that may hang.
        for _ in range(3):
            service.clock.now_s += keystones.RETRY_S
            assert service.request()[0] == 503
        assert threading.active_count() - threads <= 2
        assert levels(caplog) == ['WARNING']

    def test_it_is_asked_when_it_answers_again(self, service, failing):
        service.answer_within(SHORT_DEADLINE_S)
        assert service.request()[0] == 503
        service.answer_within(DEADLINE_S)
        failing.error = auth_token.InvalidToken()
        service.clock.now_s += keystones.RETRY_S
        assert service.request()[0] == 401
        assert service.request()[0] == 401

    def test_a_token_that_it_chokes_on_keeps_nobody_out(self, service,
                                                        failing):
        failing.error = auth_token.ServiceError('400')
        assert service.request(token='x' * 10_000)[0] == 503
        failing.error = auth_token.InvalidToken()
        assert service.request()[0] == 401
