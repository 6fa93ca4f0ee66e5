"""The public contract kit: virtual time, fault injection, and the suites a backend must pass.

A lease backend's whole test module (install ``cronstable[testing]``)::

    import pytest
    from cronstable.testing.lease_contract import LeaseStoreContract

    class TestMyLease(LeaseStoreContract):
        @pytest.fixture
        def door(self, tmp_path):
            return MyDoor(tmp_path)    # five methods: store, record, delete, garble, outage

    # the host's driver over it, in virtual time: cronstable.testing.election_contract
    # @reboot marks, where the store keeps them: cronstable.testing.marks_contract
    # the claim log, where there is one: cronstable.testing.claims_contract
    # a state store: cronstable.testing.state_contract

``clock``: ``VirtualClock``, ``run_virtual``, ``until``, ``always``. ``host``: ``FakeHost`` with every seam.
``memory``: the linearisable reference store. ``faults``: ``FaultyStore`` and its plans. ``planted``: broken stores
that a test of the kit must catch. Only the contract modules and ``kit`` import pytest.
"""
