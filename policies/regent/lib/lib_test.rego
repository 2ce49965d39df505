package regent.lib_test

import data.regent.lib

test_takes_everything_from_the_annotations if {
	lib.denial({"title": "Closed", "custom": {"code": "CLOSED", "remedy": "Wait.", "terminal": false}}) == {
		"code": "CLOSED",
		"title": "Closed",
		"remedy": "Wait.",
		"terminal": false,
	}
}

test_denies_without_annotations if {
	lib.denial({}) == {
		"code": "UNDOCUMENTED",
		"title": "A rule without a title",
		"remedy": "Ask the author of the rule.",
		"terminal": true,
	}
}
