//! Memory that the program has of its own, and windows.

use std::ptr;

use super::*;

/// Pages that this test maps, and unmaps.
struct Pages(*mut u8, usize);

impl Pages {
    fn map(len: usize) -> Self {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place that the kernel chooses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self(start.cast(), len)
    }

    /// The word at `offset`, a multiple of 8.
    fn word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset < self.1);
        // SAFETY: inside the mapping, which lives as long as `self`; peers store there by the hardware's atomics.
        unsafe { &*self.0.add(offset).cast() }
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(std::sync::atomic::Ordering::Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, std::sync::atomic::Ordering::Release);
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, unmapped once.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn the_programs_own_memory_is_reached_under_addresses_of_its_choice() {
    const IOVA: u64 = 0x7abc_0000_0000;
    let (a, b) = pair(Transport::Rc);
    let pages = Pages::map(64 << 10);
    let access = Access::REMOTE | Access::RELAXED_ORDERING;
    // SAFETY: the pages are unmapped after the deregistration below; only atomics touch them, and no request is inline.
    let own = unsafe { b.pd.register_foreign_at(pages.0.cast(), pages.1, IOVA, access) }.expect("registered");
    assert_eq!((own.addr(), own.len(), own.rkey()), (IOVA, 64 << 10, own.remote().rkey));
    a.region.store(0, 0x1234);
    let there = own.remote().at(40_000);
    assert_eq!(there, RemoteAddr { addr: IOVA + 40_000, rkey: own.rkey() });
    a.qp.post(SendRequest::write(&[a.region.slice(0..8)], there).id(1).signaled()).expect("posted");
    a.done(1, Opcode::Write);
    assert_eq!(pages.load(40_000), 0x1234);
    // An atomic, and a Read back; a request of the owner names it by the same addresses.
    a.qp.post(SendRequest::fetch_add(&[a.region.slice(8..16)], there, 6).id(2).signaled()).expect("posted");
    a.done(2, Opcode::FetchAdd);
    a.qp.post(SendRequest::read(&[a.region.slice(16..24)], there).id(3).signaled()).expect("posted");
    a.done(3, Opcode::Read);
    assert_eq!((a.region.load(8), a.region.load(16)), (0x1234, 0x123a));
    pages.store(8, 99);
    b.qp.post(SendRequest::write(&[own.slice(8..16)], a.there(24)).id(4).signaled()).expect("posted");
    b.done(4, Opcode::Write);
    assert_eq!(a.region.load(24), 99);
    // Beyond the end, by the address of a peer.
    a.qp.post(SendRequest::read(&[a.region.slice(0..8)], own.remote().at((64 << 10) - 7)).id(5)).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RemoteAccess);
    own.deregister().expect("deregistered");

    let (a, b) = pair(Transport::Rc);
    a.qp.post(SendRequest::read(&[a.region.slice(0..8)], there).id(6)).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RemoteAccess);
    // SAFETY: nothing is registered.
    let beyond = unsafe { b.pd.register_foreign_at(pages.0.cast(), pages.1, u64::MAX - 5, access) };
    assert!(beyond.err().expect("no addresses").to_string().contains("pass the end of all addresses"));
    // SAFETY: as the first.
    let unpinned = unsafe { b.pd.register_foreign(pages.0.cast(), pages.1, Access::REMOTE | Access::ON_DEMAND) };
    let possible = !b.context.on_demand(Transport::Rc).expect("an answer").is_empty();
    assert_eq!(unpinned.is_ok(), possible);
    if let Ok(unpinned) = unpinned {
        unpinned.deregister().expect("deregistered");
    }
}

/// A region that windows can be bound to.
fn bindable(side: &Side) -> Region {
    side.pd.region(8192, Access::REMOTE | Access::WINDOW_BIND).expect("a region")
}

/// How a Write of 8 bytes ends.
fn written(a: &Side, to: RemoteAddr) -> Status {
    a.qp.post(SendRequest::write(&[a.region.slice(0..8)], to).signaled()).expect("posted");
    a.take(1)[0].status()
}

/// Connects both sides anew, as an error ends their connection.
fn again(a: &Side, b: &Side) {
    for side in [a, b] {
        side.qp.reset().expect("RESET");
        side.qp.init(&side.path, Access::REMOTE).expect("INIT");
    }
    a.join(&a.qp, b, &b.qp);
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_window_of_type_1_moves_and_closes_and_keeps_its_region() {
    let (a, b) = pair(Transport::Rc);
    let region = bindable(&b);
    let mut window = Window::new(&b.pd, WindowType::One).expect("a window");
    let bind = |window: &mut Window, range| {
        let request = BindRequest::new(region.part(range), Access::REMOTE).id(1).signaled();
        let shown = b.qp.bind(window, request).expect("posted");
        b.done(1, Opcode::BindWindow);
        assert_eq!(shown.rkey, window.rkey());
        shown
    };
    a.region.store(0, 5);
    let first = bind(&mut window, 1024..2048);
    assert_eq!((first.addr, first.len), (region.addr() + 1024, 1024));
    assert_ne!(first.rkey, region.rkey());
    assert_eq!((written(&a, first.at(1016)), region.load(2040)), (Status::Success, 5));
    assert_eq!(written(&a, first.at(1017)), Status::RemoteAccess);
    again(&a, &b);
    let second = bind(&mut window, 4096..4104);
    assert_ne!(second.rkey, first.rkey);
    assert_eq!((written(&a, second.at(0)), region.load(4096)), (Status::Success, 5));
    assert_eq!(written(&a, first.at(0)), Status::RemoteAccess);
    again(&a, &b);
    // Open to every QP of the domain.
    let (from, to) = (a.another(|q| q), b.another(|q| q));
    a.join(&from, &b, &to);
    from.post(SendRequest::write(&[a.region.slice(0..8)], second.at(0)).signaled()).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::Success);

    // Its region stays while it is open, handle and all.
    let still = region.deregister().expect_err("a window is bound");
    assert_eq!(still.error().errno(), Some(16), "{still}");
    let region = still.memory;
    assert_eq!((written(&a, second.at(0)), region.load(4096)), (Status::Success, 5));
    b.qp.bind(&mut window, BindRequest::new(region.part(0..0), Access::empty()).id(2).signaled()).expect("posted");
    b.done(2, Opcode::BindWindow);
    assert_eq!(written(&a, second.at(0)), Status::RemoteAccess);
    region.deregister().expect("deregistered");
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_window_of_type_2_is_closed_by_either_side() {
    let (a, b) = pair(Transport::Rc);
    let region = bindable(&b);
    let mut window = Window::new(&b.pd, WindowType::Two).expect("a window");
    let bind = |window: &mut Window, access| {
        b.qp.bind(window, BindRequest::new(region.part(64..128), access).id(1).signaled()).expect("posted")
    };
    a.region.store(0, 6);
    let first = bind(&mut window, Access::REMOTE);
    b.done(1, Opcode::BindWindow);
    assert_eq!((written(&a, first.at(0)), region.load(64)), (Status::Success, 6));

    b.qp.post(SendRequest::local_invalidate(first.rkey).id(2).signaled()).expect("posted");
    b.done(2, Opcode::LocalInvalidate);
    assert_eq!(written(&a, first.at(0)), Status::RemoteAccess);
    again(&a, &b);

    let second = bind(&mut window, Access::REMOTE_WRITE);
    b.done(1, Opcode::BindWindow);
    assert!(second.rkey != first.rkey && second.rkey >> 8 == first.rkey >> 8);
    assert_eq!(written(&a, second.at(8)), Status::Success);
    b.qp.receive(RecvRequest::new(&[b.region.slice(0..8)]).id(3)).expect("posted");
    a.qp.post(SendRequest::send_invalidate(&[a.region.slice(0..8)], second.rkey).id(4).signaled()).expect("posted");
    a.done(4, Opcode::Send);
    let received = b.done(3, Opcode::Receive);
    assert_eq!((received.invalidated(), received.immediate(), received.bytes()), (Some(second.rkey), None, 8));
    assert_eq!(written(&a, second.at(8)), Status::RemoteAccess);
    again(&a, &b);

    // For reading only; and not for another QP.
    let third = bind(&mut window, Access::REMOTE_READ);
    b.done(1, Opcode::BindWindow);
    let (from, to) = (a.another(|q| q), b.another(|q| q));
    a.join(&from, &b, &to);
    from.post(SendRequest::read(&[a.region.slice(8..16)], third.at(0)).signaled()).expect("posted");
    assert_eq!(a.take(1)[0].status(), Status::RemoteAccess);
    assert_eq!(written(&a, third.at(0)), Status::RemoteAccess);
    again(&a, &b);
    // Bound: it must be closed first. The window stays as it was.
    bind(&mut window, Access::REMOTE);
    let refused = b.take(1)[0];
    assert!(!refused.is_success() && refused.id() == 1, "{}", refused.status());
    assert_eq!(region.deregister().expect_err("a window is bound").error().errno(), Some(16));
}

#[test]
#[ignore = "run under Vervain, by everything_by_memory and its like"]
fn a_window_belongs_to_one_domain_and_dropping_it_closes_it() {
    let (a, b) = pair(Transport::Rc);
    let datagrams = Side::new(Transport::Ud, |q| q, |_| ());
    let (here, there) = (bindable(&a), bindable(&b));
    let mut window = Window::new(&b.pd, WindowType::Two).expect("a window");
    let mut refused = |qp: &Qp, region: &Region| {
        let error = qp.bind(&mut window, BindRequest::new(region.part(0..8), Access::REMOTE)).expect_err("refused");
        assert_eq!(error.errno, 22);
    };
    refused(&a.qp, &there);
    refused(&b.qp, &here);
    refused(&datagrams.qp, &there);
    let caps = a.context.attr().expect("attributes");
    assert!(caps.capabilities.contains(Capabilities::WINDOWS | Capabilities::EXTENSIONS) && caps.max_windows > 10);
    assert!(caps.capabilities.intersects(Capabilities::WINDOWS_2A | Capabilities::WINDOWS_2B));

    let shown = b.qp.bind(&mut window, BindRequest::new(there.part(0..8), Access::REMOTE).fence().id(1).signaled());
    b.done(1, Opcode::BindWindow);
    let shown = shown.expect("posted");
    assert_eq!(written(&a, shown.at(0)), Status::Success);
    drop(window);
    assert_eq!(written(&a, shown.at(0)), Status::RemoteAccess);
    there.deregister().expect("deregistered");
    // A region that was not made for windows.
    let (_, b) = pair(Transport::Rc);
    let mut window = Window::new(&b.pd, WindowType::One).expect("a window");
    b.qp.bind(&mut window, BindRequest::new(b.region.part(0..8), Access::REMOTE).id(2)).expect("posted");
    assert!(!b.take(1)[0].is_success());
}
