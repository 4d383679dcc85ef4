//! Proves how the EndpointSlice of a job changes when its first worker is gone or has an address of another
//! family.

use super::*;

/// The API server refuses to change the address family of an EndpointSlice.
#[tokio::test]
async fn an_endpoint_slice_without_an_address_keeps_its_address_family() {
    let server = Server::new(Box::new(|_, _| None));
    let context = context(&server);
    let digest = Some("of the first worker of attempt 1".to_owned());
    context.index.enter(&key(), ChildEntry::written(Child::Endpoint.into(), digest));
    let mut status = begun();
    status["attempt"] = json!(2);
    reconcile(Arc::new(job(&status)), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let place = |wanted: Method, part: &str| {
        calls.iter().position(|(method, path, _)| *method == wanted && path.contains(part)).unwrap()
    };
    let emptied = place(Method::PATCH, "/endpointslices/");
    assert_eq!(
        (&calls[emptied].2["endpoints"], &calls[emptied].2["addressType"]),
        (&json!([]), &Value::Null)
    );
    assert!(emptied < place(Method::POST, "/pods"), "no worker finds the first one of the last attempt");
}

/// Returns the calls about the EndpointSlice of a job whose first worker has an IPv6 address, and the job's
/// status. The existing EndpointSlice has addresses of `family`, and its owner has the UID `owner_uid`.
async fn over_endpoint(family: &str, owner_uid: &str) -> (Vec<(Method, Value)>, RLTrainingJobStatus) {
    let owner = json!({
        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "quickstart", "uid": owner_uid,
    });
    let found = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family, "endpoints": [],
        "metadata": {
            "name": "quickstart-trainer", "namespace": "default", "uid": "slice", "ownerReferences": [owner],
        },
    });
    let server = Server::new(Box::new(move |method, path| match *method {
        _ if !path.contains("/endpointslices/") => None,
        Method::GET => Some((200, found.clone())),
        Method::DELETE => Some((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))),
        _ => Some(refusal(422, "Invalid", "addressType: field is immutable")),
    }));
    let context = context(&server);
    reachable(&context);
    let first = Worker { phase: WorkerPhase::Running, is_ready: true, ..fixtures::worker(0, 1) };
    context.index.enter(&key(), Worker { address: Some("fd00::7".into()), ..first });
    let digest = Some("without an address".to_owned());
    context.index.enter(&key(), ChildEntry::written(Child::Endpoint.into(), digest));
    reconcile(Arc::new(job(&begun())), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap().clone();
    let of_slice = calls.into_iter().filter(|(_, path, _)| path.contains("/endpointslices"));
    let written = of_slice.filter(|(method, ..)| *method != Method::GET);
    (written.map(|(method, _, sent)| (method, sent)).collect(), server.status().unwrap())
}

/// The cluster or the network of the pods has changed between two attempts.
#[tokio::test]
async fn an_endpoint_slice_of_another_address_family_is_made_again() {
    let (calls, status) = over_endpoint("IPv4", "u").await;
    let [(_, changed), (deletion, deleted), (creation, made)] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((deletion, &deleted["preconditions"]["uid"]), (&Method::DELETE, &json!("slice")));
    assert_eq!((creation, made), (&Method::POST, changed));
    assert_eq!(
        (&made["addressType"], &made["endpoints"][0]["addresses"]),
        (&json!("IPv6"), &json!(["fd00::7"]))
    );
    assert_eq!(condition(&status, ConditionType::Stalled).status, ConditionStatus::False);
    for (family, owner_uid) in [("IPv6", "u"), ("IPv4", "of a newer job")] {
        let (calls, status) = over_endpoint(family, owner_uid).await;
        assert_eq!(calls.len(), 1, "it is refused for another reason, or another job's: {calls:?}");
        assert_eq!(condition(&status, ConditionType::Stalled).reason, "ObjectRefused");
    }
}
