"""What ships for tests: verified fakes of the platform's interfaces, held to the suites of tests/conformance."""
