// The official npm package as a client of the gateway. TestNode starts the gateway and this file.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import OpenAI from 'openai';

const { BASE_URL, UPSTREAM_CONTROL, TOKEN_RICH, TOKEN_POOR } = process.env;
const requestID = 'x-regent-request-id';
const uuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

// as makes a client with a token, whose HTTP requests are counted as they leave it. All else is the SDK's default, retries included.
function as(token) {
  const counter = { tries: 0 };
  const client = new OpenAI({
    apiKey: token,
    baseURL: BASE_URL,
    fetch: (url, init) => {
      counter.tries++;
      return fetch(url, init);
    },
  });
  return { client, counter };
}

const reader = (token) => as(token).client; // whose requests do not count

// behave scripts a model of the provider.
async function behave(model, script) {
  const response = await fetch(`${UPSTREAM_CONTROL}/${model}`, { method: 'PUT', body: JSON.stringify(script) });
  assert.equal(response.status, 200, await response.text());
}

// seen is what the provider has seen of a model since it was scripted.
const seen = async (model) => (await fetch(`${UPSTREAM_CONTROL}/${model}`)).json();

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
const settled = (token, id) => eventually(() => reader(token).get(`/requests/${id}`), (call) => call.ended_at !== null);

const chat = (model, more) => ({ model, messages: [{ role: 'user', content: 'Hello' }], ...more });

// read reads a stream and returns what it has brought, with the error that ended it.
async function read(stream) {
  const got = { texts: [], usage: [], finish: [], error: undefined };
  try {
    for await (const chunk of stream) {
      if ('usage' in chunk && chunk.usage !== null) got.usage.push(chunk.usage);
      for (const { delta, finish_reason } of chunk.choices) {
        if (delta.content) got.texts.push(delta.content);
        if (finish_reason) got.finish.push(finish_reason);
      }
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

const told = ({ status, type, code }) => ({ status, type, code });
const tokens = ({ prompt_tokens, completion_tokens, total_tokens }) => [prompt_tokens, completion_tokens, total_tokens];

test('a turn', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['Good', ' day'] });
  const { data, response } = await client.chat.completions.create(chat('open/scripted')).withResponse();
  assert.equal(data.model, 'open/scripted');
  assert.equal(data.choices[0].message.content, 'Good day');
  assert.equal(data.choices[0].finish_reason, 'stop');
  assert.deepEqual(tokens(data.usage), [2, 2, 4]);
  assert.equal(counter.tries, 1);
  assert.equal((await seen('scripted')).requests, 1);
  const id = response.headers.get(requestID);
  const call = await settled(TOKEN_RICH, id);
  assert.deepEqual([call.id, call.state, call.charge.usd], [id, 'completed', '0.000004']);
});

for (const usage of [false, true]) {
  test(`a stream with ${usage ? 'usage' : 'no usage'}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', { text: ['Good', ' day', '!'], split: 7 });
    const wish = usage ? { stream_options: { include_usage: true } } : {};
    const { data, response } = await client.chat.completions.create(chat('open/scripted', { stream: true, ...wish })).withResponse();
    const got = await read(data);
    assert.equal(got.error, undefined);
    assert.deepEqual(got.texts, ['Good', ' day', '!']);
    assert.deepEqual(got.finish, ['stop']);
    assert.deepEqual(got.usage.map(tokens), usage ? [[2, 3, 5]] : []);
    assert.equal(counter.tries, 1);
    assert.equal((await seen('scripted')).requests, 1);
    const call = await settled(TOKEN_RICH, response.headers.get(requestID));
    assert.deepEqual([call.state, call.stream, call.charge.usd], ['completed', true, '0.000005']);
  });
}

const tools = [
  {
    type: 'function',
    function: { name: 'run', parameters: { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] } },
  },
];

// Two turns: the provider calls a tool, is shown its result, and answers.
for (const streams of [false, true]) {
  test(`a tool call, ${streams ? 'streamed' : 'whole'}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', { text: ['It', ' is', ' hello'] });
    const request = chat('open/scripted', { tools });
    const turn = async () =>
      streams ? client.chat.completions.stream(request).finalChatCompletion() : client.chat.completions.create(request);
    const first = (await turn()).choices[0];
    assert.equal(first.finish_reason, 'tool_calls');
    assert.equal(first.message.tool_calls.length, 1);
    const { id, type, function: called } = first.message.tool_calls[0];
    assert.deepEqual([id, type, called.name, called.arguments], ['call_1', 'function', 'run', '{"command":"echo hello"}']);
    request.messages.push(first.message, { role: 'tool', tool_call_id: id, content: 'hello' });
    const second = (await turn()).choices[0];
    assert.deepEqual([second.finish_reason, second.message.content], ['stop', 'It is hello']);
    const provider = await seen('scripted');
    const { messages } = JSON.parse(provider.body);
    assert.equal(messages[1].tool_calls[0].function.arguments, '{"command":"echo hello"}');
    assert.deepEqual(messages[2], { role: 'tool', tool_call_id: 'call_1', content: 'hello' });
    assert.deepEqual([counter.tries, provider.requests], [2, 2]);
  });
}

test('the list of models', async () => {
  const { data, response } = await reader(TOKEN_RICH).models.list().withResponse();
  const models = [];
  for await (const { id, object } of data) models.push([id, object]);
  assert.deepEqual(models, [['open/scripted', 'model'], ['open/busy', 'model']]);
  assert.match(response.headers.get(requestID), uuid);
});

test('a model that is not there and one that is denied look the same', async () => {
  const messages = new Set();
  for (const model of ['closed/scripted', 'open/unknown']) {
    for (const stream of [false, true]) {
      const { client, counter } = as(TOKEN_RICH);
      await behave('scripted', {});
      const error = await refusal(client.chat.completions.create(chat(model, { stream })));
      assert.ok(error instanceof OpenAI.NotFoundError, error);
      assert.deepEqual(told(error), { status: 404, type: 'invalid_request_error', code: 'model_not_found' });
      assert.match(error.headers.get(requestID), uuid);
      assert.equal(error.error.request_id, error.headers.get(requestID));
      messages.add(JSON.stringify({ ...error.error, request_id: 'ID' }));
      assert.deepEqual([counter.tries, (await seen('scripted')).requests], [1, 0]);
    }
  }
  assert.equal(messages.size, 1, [...messages].join('\n'));
});

test('a wrong token', async () => {
  for (const token of [`gwi_${'3'.repeat(64)}`, 'sk-of-another-vendor']) {
    for (const stream of [false, true]) {
      const { client, counter } = as(token);
      await behave('scripted', {});
      const error = await refusal(client.chat.completions.create(chat('open/scripted', { stream })));
      assert.ok(error instanceof OpenAI.AuthenticationError, error);
      assert.deepEqual(told(error), { status: 401, type: 'invalid_request_error', code: 'invalid_api_key' });
      assert.ok(!error.message.includes(token), error.message);
      assert.deepEqual([counter.tries, (await seen('scripted')).requests], [1, 0]);
    }
  }
});

test('an exhausted budget is told and not tried again', async () => {
  await behave('scripted', {});
  const { response } = await reader(TOKEN_POOR).chat.completions.create(chat('open/scripted')).withResponse();
  await settled(TOKEN_POOR, response.headers.get(requestID));
  for (const stream of [false, true]) {
    const { client, counter } = as(TOKEN_POOR);
    await behave('scripted', {});
    const error = await refusal(client.chat.completions.create(chat('open/scripted', { stream })));
    assert.ok(error instanceof OpenAI.RateLimitError, error);
    assert.deepEqual(told(error), { status: 429, type: 'insufficient_quota', code: 'insufficient_quota' });
    assert.match(
      error.message,
      /^429 the limit of 110 tokens for user\/poor\/tokens is reached: used 7, held by running calls 0; there is room again within (1h0m0s|59m\d+s)$/,
    );
    assert.deepEqual([error.error.limit.used, error.error.limit.held, error.error.limit.window], ['7', '0', 'fixed/1h']);
    assert.equal(error.headers.get('x-should-retry'), 'false');
    const wait = Number(error.headers.get('retry-after'));
    assert.ok(wait >= 3500 && wait <= 3600, `${wait} s`);
    assert.deepEqual([counter.tries, (await seen('scripted')).requests], [1, 0]);
  }
});

for (const [status, stream] of [[503, false], [529, false], [503, true]]) {
  test(`a failure of capacity is waited for: ${status}${stream ? ', a stream' : ''}`, async () => {
    const { client, counter } = as(TOKEN_RICH);
    await behave('scripted', [{ status, retry_after: 1 }, { text: ['once', ' more'] }]);
    const answer = await client.chat.completions.create(chat('open/scripted', { stream }));
    if (stream) assert.deepEqual((await read(answer)).texts, ['once', ' more']);
    else assert.equal(answer.choices[0].message.content, 'once more');
    assert.deepEqual([counter.tries, (await seen('scripted')).requests], [2, 2]);
  });
}

// The SDK would sleep as long as Retry-After says.
test('an hour is not waited for', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('busy', { status: 429, retry_after: 3600 });
  for (const calls of [1, 2]) { // the second time the source is not even asked
    const error = await refusal(client.chat.completions.create(chat('open/busy')));
    assert.ok(error instanceof OpenAI.InternalServerError, error);
    assert.deepEqual(told(error), { status: 503, type: 'server_error', code: 'capacity_unavailable' });
    assert.deepEqual([counter.tries, (await seen('busy')).requests], [calls, 1]);
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
    const { data, response } = await client.chat.completions.create(chat('open/scripted', { stream: true })).withResponse();
    const got = await read(data);
    assert.deepEqual(got.texts, texts);
    assert.ok(got.error instanceof OpenAI.APIError, got.error);
    assert.deepEqual(told(got.error), { status: undefined, type: 'server_error', code: 'upstream_error' });
    assert.equal(got.error.message, "The provider's answer broke off.");
    const id = response.headers.get(requestID);
    assert.equal(got.error.error.request_id, id);
    assert.deepEqual([counter.tries, (await seen('scripted')).requests], [1, 1]);
    assert.equal((await settled(TOKEN_RICH, id)).state, 'failed');
  });
}

test('an aborted stream leaves a cancelled call', async () => {
  const { client, counter } = as(TOKEN_RICH);
  await behave('scripted', { text: ['a', 'b'], hold_after_delta: true });
  const { data, response } = await client.chat.completions.create(chat('open/scripted', { stream: true })).withResponse();
  for await (const chunk of data) {
    if (chunk.choices[0].delta.content === 'a') break; // by which the SDK closes the connection
  }
  const call = await settled(TOKEN_RICH, response.headers.get(requestID));
  assert.deepEqual([call.state, call.attempts[0].reason], ['cancelled', 'client_gone']);
  await eventually(() => seen('scripted'), ({ open }) => open === 0);
  assert.deepEqual([counter.tries, (await seen('scripted')).requests], [1, 1]);
});
