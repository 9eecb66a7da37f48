import assert from 'node:assert/strict'
import * as crypto from 'node:crypto'
import { test } from 'node:test'

import { asset, checked, isVersion, signedVersion } from './release.js'

const version = 'v1.37.2+karve.1'

// manager is a release manager, who signs as minisign -S -l does.
function manager(number = 'ABCDEFGH') {
  const { publicKey, privateKey } = crypto.generateKeyPairSync('ed25519')
  const head = Buffer.from(`Ed${number}`)
  return {
    key: Buffer.concat([head, Buffer.from(publicKey.export({ format: 'jwk' }).x, 'base64url')]).toString('base64'),
    sign(sums, comment = `karve ${version}`) {
      const body = crypto.sign(null, Buffer.from(sums), privateKey)
      const again = crypto.sign(null, Buffer.concat([body, Buffer.from(comment)]), privateKey)
      const lines = ['untrusted comment: x', Buffer.concat([head, body]).toString('base64'), `trusted comment: ${comment}`, again.toString('base64')]
      return Buffer.from(`${lines.join('\n')}\n`)
    },
  }
}

const good = manager()
const packed = Buffer.from('the program')

// release returns the files of a release, and what signs them.
function release(comment, sums = `${crypto.createHash('sha256').update(packed).digest('hex')}  ${asset()}\n`) {
  return { [asset()]: packed, SHA256SUMS: Buffer.from(sums), 'SHA256SUMS.minisig': good.sign(sums, comment) }
}

test('a release is right', () => {
  assert.equal(checked(release(), version, [manager('another1').key, good.key]), packed)
})

const changes = {
  'another program': [content => { content[asset()] = Buffer.from('another') }, /is damaged: its SHA-256 is/],
  'other checksums': [content => { content.SHA256SUMS = Buffer.from(`${content.SHA256SUMS}\n`) }, /is not the signature/],
  'another key of the same number': [content => { content['SHA256SUMS.minisig'] = manager().sign(content.SHA256SUMS) }, /is not the signature/],
  'another key': [content => { content['SHA256SUMS.minisig'] = manager('another1').sign(content.SHA256SUMS) }, /is not the signature/],
  'no signature': [content => { delete content['SHA256SUMS.minisig'] }, /there is no SHA256SUMS.minisig/],
  'an empty signature': [content => { content['SHA256SUMS.minisig'] = Buffer.alloc(0) }, /is not the signature/],
  'no program': [content => { delete content[asset()] }, /there is no karve-/],
  'another release': [content => Object.assign(content, release('karve v1.36.4+karve.9')), /it is the release v1.36.4\+karve.9, want v1.37.2\+karve.1/],
  'a version that only a pattern takes for this one': [content => Object.assign(content, release('karve v1x37.2+karve.1')), /which is no release of Karve/],
  'more than a version': [content => Object.assign(content, release(`karve ${version} or so`)), /which is no release of Karve/],
  'no program of this machine': [content => Object.assign(content, release(undefined, '0  karve-plan9-mips.gz\n')), /the release has no karve-/],
  'a comment that was changed': [content => {
    const other = content['SHA256SUMS.minisig'].toString().replace('karve v1.37.2', 'karve v1.37.3')
    content['SHA256SUMS.minisig'] = Buffer.from(other)
  }, /is not the signature/],
}
for (const [name, [change, want]] of Object.entries(changes)) {
  test(`${name} is refused`, () => {
    const content = release()
    change(content)
    assert.throws(() => checked(content, version, [good.key]), want)
  })
}

test('the newest release has a version that is a safe name', () => {
  assert.equal(signedVersion(Buffer.from('x'), good.sign('x'), [good.key]), version)
  for (const odd of ['karve ../../v1.37.2+karve.1', 'karve v1.37.2+karve.1/..', 'karve ', 'karve', 'other v1.37.2+karve.1']) {
    assert.throws(() => signedVersion(Buffer.from('x'), good.sign('x', odd), [good.key]), /which is no release of Karve/)
  }
  for (const odd of ['v1.37.2+karve.1\n', '../v1.37.2+karve.1', 'v1.37.2%2Bkarve.1', 'v1a37.2+karve.1', '']) {
    assert.equal(isVersion(odd), false, odd)
  }
})

test('assets have the names of a release', () => {
  assert.equal(asset('linux', 'x64'), 'karve-linux-amd64.gz')
  assert.equal(asset('linux', 'arm'), 'karve-linux-armv6.gz')
  assert.equal(asset('darwin', 'arm64'), 'karve-darwin-arm64.gz')
})
