"""Tools for tests of this project and of applications: fakes, conformance suites, oracle."""
