//! Questions for the QP of a service (SIDR).

use vervain_cm::message::{Message, parse, sidr};
use vervain_cm::{Error, Event, SidrRepParams, SidrReqParams};

use crate::pair::{CLIENT, Pair, SERVER, SERVER_WAITS, sent, silent, to, told};

#[test]
fn a_question_for_a_qp_is_answered_and_answered_again() {
    let mut pair = Pair::new();
    let asked = SidrReqParams { service_id: 0x111_0001, ..SidrReqParams::default() };
    let client = pair.client.sidr_request(pair.now, to(CLIENT, SERVER), &asked);
    let req = sent(&mut pair.client);
    pair.at_server(&req);
    let Event::SidrRequest { conn: server, req: heard, .. } = told(&mut pair.server) else { panic!() };
    assert_eq!((heard.request_id, heard.service_id, heard.pkey), (client, 0x111_0001, 0xffff));
    pair.at_server(&req);
    silent(&mut pair.server);
    let answer = SidrRepParams { qpn: 0x33, qkey: 0x0123_4567, ..SidrRepParams::default() };
    pair.server.sidr_reply(pair.now, server, &answer).unwrap();
    let rep_mad = sent(&mut pair.server);
    assert_eq!(pair.server.sidr_reply(pair.now, server, &answer), Err(Error::State));
    pair.server.destroy(pair.now, server).unwrap();
    pair.pass(SERVER_WAITS);
    assert_eq!(sent(&mut pair.client), req);
    pair.at_server(&req);
    assert_eq!(sent(&mut pair.server), rep_mad);
    pair.at_client(&rep_mad);
    let Event::SidrReply { conn, rep } = told(&mut pair.client) else { panic!() };
    assert_eq!((conn, rep.qpn, rep.qkey, rep.status), (client, 0x33, 0x0123_4567, sidr::SUCCESS));
    pair.at_client(&rep_mad);
    silent(&mut pair.client);
    pair.end(client, server);
}

#[test]
fn a_question_for_a_qp_may_be_refused_and_given_up() {
    let mut pair = Pair::new();
    let client = pair.client.sidr_request(pair.now, to(CLIENT, SERVER), &SidrReqParams::default());
    let req = sent(&mut pair.client);
    pair.at_server(&req);
    let Event::SidrRequest { conn: server, .. } = told(&mut pair.server) else { panic!() };
    pair.server.destroy(pair.now, server).unwrap();
    let (_, Message::SidrRep(rep)) = parse(&sent(&mut pair.server)).unwrap() else { panic!() };
    assert_eq!(rep.status, sidr::REJECT);
    for _ in 0..15 {
        pair.pass(SERVER_WAITS);
        sent(&mut pair.client);
    }
    pair.pass(SERVER_WAITS);
    assert_eq!(told(&mut pair.client), Event::Unreachable { conn: client });
    pair.end(client, server);
}
