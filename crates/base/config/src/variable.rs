//! A variable: what it can be, how its value is read and looked at, and the sentence about a wrong one.

use std::borrow::Cow;
use std::ffi::{CStr, OsString};
use std::fmt::{self, Write};

use crate::size::bytes;
use crate::window::WrongWord;

/// An environment variable.
#[derive(Debug)]
pub struct Variable {
    pub(crate) name: &'static CStr,
    /// The option of the command that stands for it, if there is one.
    pub option: Option<Opt>,
    /// The values that are allowed.
    pub syntax: Syntax,
    /// The behaviour while it is not set: a value, or words if no value means the same.
    pub default: &'static str,
    /// Its purpose, as the beginning of a line.
    pub meaning: &'static str,
    /// The party that sets it.
    pub setter: Setter,
    /// The processes that read it. The command reads all variables that users set: they are the defaults of its
    /// options.
    pub readers: &'static [Reader],
}

/// An option of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opt {
    /// Its name, without the dashes.
    pub long: &'static str,
    /// The name of its value in the help.
    pub value: &'static str,
}

/// The party that sets a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setter {
    /// The user.
    User,
    /// `vervain run`.
    Run,
    /// `vervain launch`, for each rank.
    Launch,
    /// A person who runs the tests or the benches.
    Tester,
}

/// A reader of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The verbs library.
    Library,
    /// The preload.
    Preload,
    /// Ranks of a parallel job, when they join it.
    Ranks,
    /// Tests and benches.
    Tests,
}

impl Reader {
    /// In one word.
    pub const fn word(self) -> &'static str {
        match self {
            Reader::Library => "library",
            Reader::Preload => "preload",
            Reader::Ranks => "ranks",
            Reader::Tests => "tests",
        }
    }
}

/// The values that are allowed. As text it is the end of "it can be ...".
#[derive(Debug, Clone, Copy)]
pub enum Syntax {
    /// One of these words.
    Words(&'static [Choice]),
    /// A whole number.
    Number {
        /// The smallest.
        least: u32,
        /// The largest.
        most: u32,
    },
    /// A number of bytes, with a unit if wanted: see [`bytes()`].
    Bytes,
    /// Any text; this describes it. The code that uses the value reports a wrong one.
    Text(&'static str),
}

/// A word that a value can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The word.
    pub word: &'static str,
    /// Its meaning.
    pub meaning: &'static str,
}

impl Syntax {
    /// Returns true if a value is one that can be.
    pub fn allows(&self, text: &[u8]) -> bool {
        match self {
            Syntax::Words(words) => words.iter().any(|w| text.eq_ignore_ascii_case(w.word.as_bytes())),
            Syntax::Number { .. } => self.number(text).is_some(),
            Syntax::Bytes => bytes(text).is_some(),
            Syntax::Text(_) => true,
        }
    }

    /// The number, if this is one that can be.
    pub fn number(&self, text: &[u8]) -> Option<u32> {
        let Syntax::Number { least, most } = *self else { return None };
        let number = std::str::from_utf8(text).ok()?.parse().ok()?;
        (least..=most).contains(&number).then_some(number)
    }
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syntax::Words(words) => words.iter().enumerate().try_for_each(|(i, choice)| {
                let before = if i == 0 {
                    ""
                } else if i + 1 == words.len() {
                    " or "
                } else {
                    ", "
                };
                f.write_str(before)?;
                f.write_str(choice.word)
            }),
            Syntax::Number { least, most } => write!(f, "{least} to {most}"),
            Syntax::Bytes => f.write_str("a number of bytes, such as 4096, 512M or 4G"),
            Syntax::Text(text) => f.write_str(text),
        }
    }
}

impl Variable {
    /// The name.
    pub const fn name(&self) -> &'static str {
        match self.name.to_str() {
            Ok(name) => name,
            Err(_) => panic!("names are ASCII"),
        }
    }

    /// The value in this process's environment. An empty one counts as none.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name()).filter(|value| !value.is_empty())
    }

    /// The value as the C library has it, while `look` runs: for where nothing may be allocated. An empty one counts as
    /// none.
    pub fn look<R>(&self, look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        // SAFETY: the name is a C string.
        let value = unsafe { libc::getenv(self.name.as_ptr()) };
        if value.is_null() {
            return look(None);
        }
        // SAFETY: getenv's answer is a C string. It stays one until the program changes its environment, which must not
        // happen beside getenv(3) anyway.
        look(Some(unsafe { CStr::from_ptr(value) }.to_bytes()).filter(|value| !value.is_empty()))
    }

    /// Checks that `value` is allowed.
    ///
    /// # Errors
    /// The sentence that names the allowed values.
    pub fn check<'a>(&'static self, value: &'a [u8]) -> Result<(), Wrong<'a>> {
        if self.syntax.allows(value) { Ok(()) } else { Err(self.wrong(value)) }
    }

    /// The error for `value`, which is not allowed.
    pub fn wrong<'a>(&'static self, value: &'a [u8]) -> Wrong<'a> {
        Wrong { variable: self, value: Cow::Borrowed(value), word: None }
    }
}

/// A value that a variable cannot have. As text one sentence, made without allocating.
#[derive(Debug, Clone)]
pub struct Wrong<'a> {
    variable: &'static Variable,
    value: Cow<'a, [u8]>,
    /// The word in the value that is wrong, where it has several.
    word: Option<WrongWord>,
}

impl Wrong<'_> {
    /// This mistake with a value of its own.
    pub fn into_owned(self) -> Wrong<'static> {
        Wrong { variable: self.variable, value: Cow::Owned(self.value.into_owned()), word: self.word }
    }

    /// This mistake, made by a word of the value.
    pub fn by(self, word: WrongWord) -> Self {
        Wrong { word: Some(word), ..self }
    }
}

impl fmt::Display for Wrong<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is '", self.variable.name())?;
        for chunk in self.value.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        match &self.word {
            Some(word) => write!(f, "'; {word}"),
            None => write!(f, "'; it can be {}", self.variable.syntax),
        }
    }
}

impl std::error::Error for Wrong<'_> {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DEVICES, FORK_LIMIT, LINK};

    #[test]
    fn a_wrong_value_is_one_sentence_that_says_what_it_can_be() {
        let said = |variable: &'static Variable, value: &[u8]| variable.check(value).err().map(|e| e.to_string());
        assert_eq!(said(&DEVICES, b"17").as_deref(), Some("VERVAIN_DEVICES is '17'; it can be 1 to 16"));
        assert_eq!(said(&DEVICES, b"0").as_deref(), Some("VERVAIN_DEVICES is '0'; it can be 1 to 16"));
        assert_eq!(
            said(&LINK, b"air").as_deref(),
            Some("VERVAIN_LINK is 'air'; it can be auto, local, roce or window")
        );
        let limit = "VERVAIN_FORK_LIMIT is '4\u{fffd}B'; it can be a number of bytes, such as 4096, 512M or 4G";
        assert_eq!(said(&FORK_LIMIT, b"4\xffB").as_deref(), Some(limit));
        for (variable, value) in [(&DEVICES, &b"16"[..]), (&LINK, b"roce"), (&LINK, b"ROCE"), (&FORK_LIMIT, b"4g")] {
            assert_eq!(said(variable, value), None);
        }
    }
}
