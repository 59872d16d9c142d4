"""What the self-tests of the tidy checks share."""

import pathlib
import tempfile
import unittest


def tree_test(check, clean, bad):
    """A test case for a check of a tree of files.

    clean: name -> text, without a problem. bad: what is wrong -> (files that change the clean tree, what one of the
    problems must say).
    """
    def problems_of(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            return check(folder)

    class TreeTest(unittest.TestCase):
        def test_accepts_a_clean_tree(self):
            self.assertEqual(problems_of(clean), [])

        def test_rejects_each_bad_tree_for_its_own_reason(self):
            for name, (files, reason) in bad.items():
                with self.subTest(name):
                    self.assertIn(reason, "\n".join(problems_of(clean | files)))

    return TreeTest
