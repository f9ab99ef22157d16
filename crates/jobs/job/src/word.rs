//! A word of a command line or an environment, and how manifests and messages spell it.

use serde::{Deserialize, Serialize};

/// A word that need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub struct Word(pub Vec<u8>);

/// How it is written, for people too where that can be.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Spelled {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Spelled> for Word {
    fn from(spelled: Spelled) -> Word {
        Word(match spelled {
            Spelled::Text(text) => text.into_bytes(),
            Spelled::Bytes(bytes) => bytes,
        })
    }
}

impl From<Word> for Spelled {
    fn from(words: Word) -> Spelled {
        String::from_utf8(words.0).map_or_else(|e| Spelled::Bytes(e.into_bytes()), Spelled::Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_written_as_text_where_they_are_some() {
        for (bytes, json) in [(&b"a b"[..], r#""a b""#), (b"", r#""""#), (b"\xff/", "[255,47]")] {
            let words = Word(bytes.to_vec());
            assert_eq!(serde_json::to_string(&words).unwrap(), json);
            assert_eq!(serde_json::from_str::<Word>(json).unwrap(), words);
        }
    }
}
