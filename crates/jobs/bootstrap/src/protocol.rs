//! The messages between a rank and `vervain launch`: requests and replies, each behind its length. Both ends check
//! every length against the bytes that are there, for the other end may be a program that has written over its own
//! memory.
//!
//! A frame is the number of the bytes that follow (4 bytes), a kind (1 byte) and the fields of that kind. Numbers are
//! little endian; a text or a value stands behind its length (4 bytes). Each request but an abort has one reply, which
//! for a fence comes when the last rank has asked, and a rank waits for it before it sends another request; it may
//! abort at any time.

/// Number of this protocol. The program may have another version of this crate in it than the command.
pub const VERSION: u32 = 1;
/// The longest key, in bytes (PMIx: PMIX_MAX_KEYLEN).
pub const MAX_KEY: usize = 511;
/// The longest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;
/// The longest sentence, in bytes.
pub const MAX_SENTENCE: usize = 4096;
/// The longest frame behind its length: a put.
const MAX_FRAME: usize = 1 + 4 + MAX_KEY + 4 + MAX_VALUE;
/// The longest name of a job.
const MAX_ID: usize = 64;

/// A request of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// I am the rank that this connection was made for, of the job `id`.
    Join { version: u32, id: String },
    /// Keep a value until my next fence, which commits it.
    Put { key: String, value: Vec<u8> },
    /// Commit what I have put, and answer when all ranks are here.
    Fence,
    /// Asks for the value that `rank` has committed under `key`.
    Get { rank: u32, key: String },
    /// End all ranks. No reply.
    Abort { status: i32, sentence: String },
    /// I leave the job.
    Finalize,
}

/// A reply of the launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// The value that a get has asked for.
    Value(Option<Vec<u8>>),
    /// It cannot be done: why.
    Refused(String),
}

/// The bytes of the other end are no frame of this protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("what it sent is no message of this protocol")]
pub struct Malformed;

/// A frame under construction.
struct Frame(Vec<u8>);

impl Frame {
    fn new(kind: u8) -> Frame {
        Frame(vec![0, 0, 0, 0, kind])
    }

    fn number(mut self, number: u32) -> Frame {
        self.0.extend(number.to_le_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Frame {
        // Lengths are limited far below this type's.
        self = self.number(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend(bytes);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// The fields of a frame that are not read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn kind(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    fn number(&mut self) -> Result<u32, Malformed> {
        let bytes = self.take(4)?.try_into().map_err(|_| Malformed)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.number()?).map_err(|_| Malformed)?;
        if length > most { Err(Malformed) } else { self.take(length) }
    }

    fn text(&mut self, most: usize) -> Result<String, Malformed> {
        String::from_utf8(self.bytes(most)?.to_vec()).map_err(|_| Malformed)
    }

    fn end<T>(self, read: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(read) } else { Err(Malformed) }
    }
}

/// The beginning of a sentence, which ends with a whole letter.
pub fn shortened(sentence: &str) -> &str {
    let mut length = sentence.len().min(MAX_SENTENCE);
    while !sentence.is_char_boundary(length) {
        length -= 1;
    }
    &sentence[..length]
}

impl Request {
    /// The frame, with its length.
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Request::Join { version, id } => Frame::new(0).number(*version).bytes(id.as_bytes()),
            Request::Put { key, value } => Frame::new(1).bytes(key.as_bytes()).bytes(value),
            Request::Fence => Frame::new(2),
            Request::Get { rank, key } => Frame::new(3).number(*rank).bytes(key.as_bytes()),
            Request::Abort { status, sentence } => {
                Frame::new(4).number(status.cast_unsigned()).bytes(shortened(sentence).as_bytes())
            }
            Request::Finalize => Frame::new(5),
        }
        .finish()
    }

    /// The request in a frame without its length.
    pub fn parse(frame: &[u8]) -> Result<Request, Malformed> {
        let mut fields = Fields(frame);
        let request = match fields.kind()? {
            0 => Request::Join { version: fields.number()?, id: fields.text(MAX_ID)? },
            1 => Request::Put { key: fields.text(MAX_KEY)?, value: fields.bytes(MAX_VALUE)?.to_vec() },
            2 => Request::Fence,
            3 => Request::Get { rank: fields.number()?, key: fields.text(MAX_KEY)? },
            4 => Request::Abort { status: fields.number()?.cast_signed(), sentence: fields.text(MAX_SENTENCE)? },
            5 => Request::Finalize,
            _ => return Err(Malformed),
        };
        fields.end(request)
    }
}

impl Reply {
    /// The frame, with its length.
    pub fn frame(&self) -> Vec<u8> {
        match self {
            Reply::Done => Frame::new(0),
            Reply::Value(None) => Frame::new(1),
            Reply::Value(Some(value)) => Frame::new(2).bytes(value),
            Reply::Refused(why) => Frame::new(3).bytes(shortened(why).as_bytes()),
        }
        .finish()
    }

    /// The reply in a frame without its length.
    pub fn parse(frame: &[u8]) -> Result<Reply, Malformed> {
        let mut fields = Fields(frame);
        let reply = match fields.kind()? {
            0 => Reply::Done,
            1 => Reply::Value(None),
            2 => Reply::Value(Some(fields.bytes(MAX_VALUE)?.to_vec())),
            3 => Reply::Refused(fields.text(MAX_SENTENCE)?),
            _ => return Err(Malformed),
        };
        fields.end(reply)
    }
}

/// Bytes that have arrived, cut into frames.
#[derive(Default)]
pub struct Inbox(Vec<u8>);

impl Inbox {
    /// Adds what has arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
    }

    /// The next whole frame, without its length.
    pub fn next(&mut self) -> Result<Option<Vec<u8>>, Malformed> {
        let Some((length, rest)) = self.0.split_first_chunk() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Malformed)?;
        if length > MAX_FRAME {
            return Err(Malformed);
        }
        let Some(frame) = rest.get(..length).map(<[u8]>::to_vec) else { return Ok(None) };
        self.0.drain(..4 + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        vec![
            Request::Join { version: VERSION, id: "0123".into() },
            Request::Put { key: "k".repeat(MAX_KEY), value: vec![7; MAX_VALUE] },
            Request::Put { key: "key".into(), value: vec![1, 2, 3] },
            Request::Fence,
            Request::Get { rank: 3, key: "key".into() },
            Request::Abort { status: -1, sentence: "why".into() },
            Request::Finalize,
        ]
    }

    fn replies() -> [Reply; 4] {
        [Reply::Done, Reply::Value(None), Reply::Value(Some(vec![0; MAX_VALUE])), Reply::Refused("no".into())]
    }

    #[test]
    fn every_message_arrives_as_it_was_sent_in_pieces_of_any_size() {
        for piece in [1, 3, 4096, usize::MAX] {
            let (mut inbox, mut seen) = (Inbox::default(), Vec::new());
            let small = |r: &Request| piece > 3 || r.frame().len() < 1000;
            let sent: Vec<_> = requests().into_iter().filter(small).collect();
            let stream: Vec<u8> = sent.iter().flat_map(Request::frame).collect();
            for bytes in stream.chunks(piece.min(stream.len())) {
                inbox.push(bytes);
                while let Some(frame) = inbox.next().unwrap() {
                    seen.push(Request::parse(&frame).unwrap());
                }
            }
            assert_eq!(seen, sent);
        }
        for reply in replies() {
            assert_eq!(Reply::parse(&reply.frame()[4..]), Ok(reply));
        }
    }

    #[test]
    fn what_is_cut_off_longer_or_of_no_kind_is_refused() {
        for request in requests().iter().filter(|r| r.frame().len() < 1000) {
            let frame = request.frame();
            for length in 4..frame.len() {
                assert_eq!(Request::parse(&frame[4..length]), Err(Malformed), "{request:?} cut off at {length}");
            }
            assert_eq!(Request::parse(&[&frame[4..], &[0]].concat()), Err(Malformed), "{request:?} and a byte");
        }
        assert_eq!(Request::parse(&[6]), Err(Malformed));
        assert_eq!(Reply::parse(&[4]), Err(Malformed));
        assert_eq!(Reply::parse(&[2, 4, 0, 0, 0, 1]), Err(Malformed), "a value that is shorter than its length");
        let key = Request::Get { rank: 0, key: "k".repeat(MAX_KEY + 1) };
        assert_eq!(Request::parse(&key.frame()[4..]), Err(Malformed));
        let latin = [&[3, 0, 0, 0, 0, 1, 0, 0, 0][..], &[0xff]].concat();
        assert_eq!(Request::parse(&latin), Err(Malformed), "a key that is no UTF-8");
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_arrives() {
        let mut inbox = Inbox::default();
        inbox.push(&u32::try_from(MAX_FRAME).unwrap().to_le_bytes());
        assert_eq!(inbox.next(), Ok(None));
        let mut inbox = Inbox::default();
        inbox.push(&u32::try_from(MAX_FRAME + 1).unwrap().to_le_bytes());
        assert_eq!(inbox.next(), Err(Malformed));
    }

    #[test]
    fn a_long_sentence_is_cut_between_letters() {
        let sentence = "ä".repeat(MAX_SENTENCE);
        let Ok(Request::Abort { sentence: cut, .. }) =
            Request::parse(&Request::Abort { status: 1, sentence: format!("x{sentence}") }.frame()[4..])
        else {
            panic!("not an abort")
        };
        assert_eq!(cut.len(), MAX_SENTENCE - 1);
    }
}
