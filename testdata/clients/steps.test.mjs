// The steps that each official npm package takes as a client of the gateway. TestNode starts the gateway and this file, with the name
// of one of the speakers below.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { speakers } from './speakers.mjs';

const { UPSTREAM_CONTROL, OPENAI_URL, TOKEN_RICH, TOKEN_POOR } = process.env;
const speaker = speakers[process.env.SPEAKER];
const requestID = 'x-regent-request-id';
const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

// as makes a client with a token, whose HTTP requests are counted as they leave it. All else is the SDK's default, retries included.
function as(token) {
  const counter = { tries: 0 };
  const client = speaker.dial(token, (url, init) => {
    counter.tries++;
    return fetch(url, init);
  });
  return { client, counter };
}

// behave scripts a model of the provider.
async function behave(model, script) {
  const response = await fetch(`${UPSTREAM_CONTROL}/${model}`, { method: 'PUT', body: JSON.stringify(script) });
  assert.equal(response.status, 200, await response.text());
}

// seen is what the provider has seen of a model since it was scripted.
const seen = async (model) => (await fetch(`${UPSTREAM_CONTROL}/${model}`)).json();

// counted asserts how many requests have left the SDK, and how many calls the provider has seen.
async function counted(counter, model, tries, calls) {
  assert.deepEqual([counter.tries, (await seen(model)).requests], [tries, calls]);
}

// eventually asks until an answer is good, for as long as a busy machine may need.
async function eventually(ask, good) {
  for (const deadline = Date.now() + 30_000; ; ) {
    const answer = await ask();
    if (good(answer)) return answer;
    assert.ok(Date.now() < deadline, `not in time: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

// settled waits until a call has its last state, and returns it.
const settled = (token, id) => {
  const headers = { authorization: `Bearer ${token}` };
  return eventually(async () => (await fetch(`${OPENAI_URL}/requests/${id}`, { headers })).json(), (call) => call.ended_at !== null);
};

// read reads a stream to its end and returns its texts, and the error that ended it.
async function read(stream) {
  const got = { texts: [], error: undefined };
  try {
    for await (const event of stream) {
      const text = speaker.delta(event);
      if (text) got.texts.push(text);
    }
  } catch (error) {
    got.error = error;
  }
  return got;
}

// refusal is the SDK's error of a call that is refused.
async function refusal(call) {
  try {
    await call;
  } catch (error) {
    return error;
  }
  assert.fail('the call was not refused');
}

// refused asserts an SDK's error: its class, its status and what it tells.
function refused(error, kind, status, code) {
  assert.ok(error instanceof speaker.errors[kind], error);
  assert.deepEqual([error.status, ...speaker.told(error)], [status, speaker.kinds[code], code]);
}

const question = (model, more) => ({ ...speaker.question(model), ...more });

// cost is what so many tokens cost: a dollar a million.
const cost = (tokens) => `0.${String(tokens).padStart(6, '0')}`.replace(/0+$/, '');

test('a turn', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['Good', ' day'] });
  const { data, response } = await speaker.ask(client, question('open/scripted')).withResponse();
  assert.equal(data.model, 'open/scripted');
  assert.deepEqual(speaker.answer(data), { text: 'Good day', finish: speaker.stop, usage: [speaker.input, 2] });
  await counted(counter, 'scripted', 1, 1);
  const id = response.headers.get(requestID);
  const call = await settled(TOKEN_RICH, id);
  assert.deepEqual([call.id, call.state, call.stream, call.charge.usd], [id, 'completed', false, cost(speaker.input + 2)]);
});

test('a stream', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['Good', ' day', '!'], split: 7 });
  const { data, response } = await speaker.ask(client, question('open/scripted', { stream: true })).withResponse();
  const got = await read(data);
  assert.equal(got.error, undefined);
  assert.deepEqual(got.texts, ['Good', ' day', '!']);
  await counted(counter, 'scripted', 1, 1);
  const call = await settled(TOKEN_RICH, response.headers.get(requestID));
  assert.deepEqual([call.state, call.stream, call.charge.usd], ['completed', true, cost(speaker.input + 3)]);
});

test('a stream that the SDK puts together', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['Good', ' day', '!'], split: 7 });
  const data = await speaker.streamed(client, question('open/scripted'));
  assert.deepEqual(speaker.answer(data), { text: 'Good day!', finish: speaker.stop, usage: [speaker.input, 3] });
  await counted(counter, 'scripted', 1, 1);
});

// Two turns: the provider calls a tool, is shown its result, and answers.
for (const streams of [false, true]) {
  test(`a tool call, ${streams ? 'streamed' : 'whole'}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', { text: ['It', ' is', ' hello'] });
    const ask = (q) => (streams ? speaker.streamed(client, q) : speaker.ask(client, q));
    const first = question('open/scripted', { tools: speaker.tools });
    const called = await ask(first);
    const { id, name, input } = speaker.called(called);
    assert.ok(id);
    assert.deepEqual([name, input], ['run', { command: 'echo hello' }]);
    assert.equal(speaker.answer(called).finish, speaker.toolUse);
    const answer = speaker.answer(await ask(speaker.goOn(first, called, 'hello')));
    assert.deepEqual([answer.text, answer.finish], ['It is hello', speaker.stop]);
    assert.deepEqual(speaker.shown(JSON.parse((await seen('scripted')).body)), [{ command: 'echo hello' }, 'hello']);
    await counted(counter, 'scripted', 2, 2);
  });
}

test('models', async () => {
  const { client } = as(TOKEN_RICH);
  const models = [];
  for await (const { id } of speaker.models(client).list()) models.push(id);
  assert.deepEqual(models, ['open/scripted', 'open/busy', 'open/abroad']);
  assert.equal((await speaker.models(client).retrieve('open/scripted')).id, 'open/scripted');
  for (const id of ['closed/scripted', 'open/unknown']) {
    refused(await refusal(speaker.models(client).retrieve(id)), 'NotFoundError', 404, 'model_not_found');
  }
});

test('a model that is not there and one that is denied look the same', async () => {
  const messages = new Set();
  for (const model of ['closed/scripted', 'open/unknown']) {
    for (const stream of [false, true]) {
      const { client, counter } = as(TOKEN_RICH);
      await behave('scripted', {});
      const error = await refusal(speaker.ask(client, question(model, { stream })));
      refused(error, 'NotFoundError', 404, 'model_not_found');
      const id = error.headers.get(requestID);
      assert.match(id, uuid);
      assert.equal(speaker.requestID(error), id);
      messages.add(error.message.replaceAll(id, 'ID'));
      await counted(counter, 'scripted', 1, 0);
    }
  }
  assert.equal(messages.size, 1, [...messages].join('\n'));
});

test('a refusal by policy', async () => {
  for (const stream of [false, true]) {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', {});
    const error = await refusal(speaker.ask(client, question('open/abroad', { stream })));
    refused(error, 'PermissionDeniedError', 403, 'RESIDENCY_MISMATCH');
    assert.match(error.message, /Choose a model that is served in the residency you ask for\./);
    await counted(counter, 'scripted', 1, 0);
    assert.equal((await settled(TOKEN_RICH, error.headers.get(requestID))).state, 'denied');
  }
});

test('a wrong token', async () => {
  for (const token of [`gwi_${'3'.repeat(64)}`, 'sk-of-another-vendor']) {
    for (const stream of [false, true]) {
      const { client, counter } = as(token);
      await behave('scripted', {});
      const error = await refusal(speaker.ask(client, question('open/scripted', { stream })));
      refused(error, 'AuthenticationError', 401, 'invalid_api_key');
      assert.ok(!error.message.includes(token), error.message);
      await counted(counter, 'scripted', 1, 0);
    }
  }
});

test('an exhausted budget is told and not tried again', async () => {
  await behave('scripted', {});
  const { response } = await speaker.ask(as(TOKEN_POOR).client, question('open/scripted')).withResponse();
  await settled(TOKEN_POOR, response.headers.get(requestID));
  for (const stream of [false, true]) {
    const { client, counter } = as(TOKEN_POOR);
    await behave('scripted', {});
    const error = await refusal(speaker.ask(client, question('open/scripted', { stream })));
    refused(error, 'RateLimitError', 429, 'insufficient_quota');
    assert.match(
      error.message,
      /the limit of 110 tokens for user\/poor\/tokens is reached: used \d+, held by running calls 0; there is room again within (1h0m0s|59m\d+s)/,
    );
    const { limit } = speaker.error(error);
    assert.deepEqual([limit.used, limit.held, limit.window], [String(speaker.input + 5), '0', 'fixed/1h']);
    assert.equal(error.headers.get('x-should-retry'), 'false');
    const wait = Number(error.headers.get('retry-after'));
    assert.ok(wait >= 3500 && wait <= 3600, `${wait} s`);
    await counted(counter, 'scripted', 1, 0);
  }
});

for (const [status, stream] of [[503, false], [529, false], [503, true]]) {
  test(`a failure of capacity is waited for: ${status}${stream ? ', a stream' : ''}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', [{ status, retry_after: 1 }, { text: ['once', ' more'] }]);
    const answer = await speaker.ask(client, question('open/scripted', { stream }));
    if (stream) assert.deepEqual((await read(answer)).texts, ['once', ' more']);
    else assert.equal(speaker.answer(answer).text, 'once more');
    await counted(counter, 'scripted', 2, 2);
  });
}

// The SDK would sleep as long as Retry-After says.
test('an hour is not waited for', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('busy', { status: 429, retry_after: 3600 });
  for (const calls of [1, 2]) { // the second time the source is not even asked
    refused(await refusal(speaker.ask(client, question('open/busy'))), 'InternalServerError', 503, 'capacity_unavailable');
    await counted(counter, 'busy', calls, 1);
  }
});

for (const [script, texts] of [
  [{ text: ['a', 'b', 'c'], error_after: 2 }, ['a', 'b']],
  [{ text: ['a', 'b'], omit_done: true }, ['a', 'b']],
  [{ text: ['a', 'b'], break: 'after_first_delta' }, ['a']],
]) {
  test(`an error in mid-stream: ${JSON.stringify(script)}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', script);
    const { data, response } = await speaker.ask(client, question('open/scripted', { stream: true })).withResponse();
    const { texts: got, error } = await read(data);
    assert.deepEqual(got, texts);
    refused(error, 'APIError', undefined, 'upstream_error');
    assert.match(error.message, /The provider's answer broke off\./);
    const id = response.headers.get(requestID);
    assert.equal(speaker.requestID(error), id);
    await counted(counter, 'scripted', 1, 1);
    assert.equal((await settled(TOKEN_RICH, id)).state, 'failed');

    await behave('scripted', script);
    refused(await refusal(speaker.streamed(client, question('open/scripted'))), 'APIError', undefined, 'upstream_error');
  });
}

test('an aborted stream leaves a cancelled call', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['a', 'b'], hold_after_delta: true });
  const { data, response } = await speaker.ask(client, question('open/scripted', { stream: true })).withResponse();
  for await (const event of data) {
    if (speaker.delta(event) === 'a') break; // by which the SDK closes the connection
  }
  const call = await settled(TOKEN_RICH, response.headers.get(requestID));
  assert.deepEqual([call.state, call.attempts[0].reason], ['cancelled', 'client_gone']);
  await eventually(() => seen('scripted'), ({ open }) => open === 0);
  await counted(counter, 'scripted', 1, 1);
});

// What only one of the protocols has.
for (const [name, run] of Object.entries(speaker.more ?? {})) {
  test(name, async () => {
    await behave('scripted', {});
    await run(as(TOKEN_RICH).client, {
      shown: async () => JSON.parse((await seen('scripted')).body),
      notFound: async (call) => refused(await refusal(call), 'NotFoundError', 404, 'model_not_found'),
    });
  });
}
